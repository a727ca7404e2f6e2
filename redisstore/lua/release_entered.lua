-- release.lua for an explicit holder: the lock is free with its last lease.
-- KEYS: 1 lock, 2 set of leases. ARGV: 1 lease, 2 wake-up channel, 3 ms to
-- keep the lock, '' to free it.
local call = redis.call
-- The set alone proves nothing: it may be left from a lock that was deleted.
local mark = call('GETRANGE', KEYS[1], '-1', '-1')
if mark ~= ' ' then return mark == '' and call('PTTL', KEYS[1]) == -2 and 3 or 2 end
local left = call('PTTL', KEYS[1])
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%d', now))
if call('ZREM', KEYS[2], ARGV[1]) == 0 then return 2 end
local last = call('ZRANGE', KEYS[2], '-1', '-1', 'WITHSCORES')[2]
-- What the others still need, and what is to be kept, in ms.
local need = last and math.ceil((last - now) / 1000) or 0
if ARGV[3] ~= '' then need = math.max(need, tonumber(ARGV[3])) end
if need == 0 then
  call('DEL', KEYS[1], KEYS[2])
elseif left < 0 or need < left then
  call('PEXPIRE', KEYS[1], need)
  call('PEXPIRE', KEYS[2], need + 1000)
end
redis.pcall(redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH', ARGV[2], '')
return 1
