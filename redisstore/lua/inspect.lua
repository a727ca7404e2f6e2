-- KEYS: 1 lock, 2 set of leases. Replies 0 (free) or "pttl holds token".
local token = redis.call('GET', KEYS[1])
if not token then return 0 end
local holds = 1
if string.byte(token, -1) == 32 then
  local clock = redis.call('TIME')
  local now = string.format('(%d', clock[1] * 1000000 + clock[2])
  holds = math.max(1, redis.call('ZCOUNT', KEYS[2], now, '+inf'))
end
return redis.call('PTTL', KEYS[1]) .. ' ' .. holds .. ' ' .. token
