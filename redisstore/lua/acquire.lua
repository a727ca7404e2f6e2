-- Takes a free lock. Replies: server time (granted, token as sent with
-- seq = clock + 1 s less the further fences), its negative (late, nothing changed), an array with the
-- stored token and the server time (granted otherwise), or the text
-- "pttl token" (held by others).
-- ARGV: 4 lease as JSON, without its opening quote; 5 further fences wanted, if
-- any. How many there are follows from the token: they reach up to what its
-- server time and a second make.
if ARGV[5] then first = seq - ARGV[5] end
local function set(try) return try('SET', KEYS[1], value(), 'NX', 'PX', ARGV[3]) end
local done = set(redis.pcall)
if done and not done.err then
  local usual = first
  local refused = record(redis.pcall)
  if refused then
    call('DEL', KEYS[1])
    return refused
  end
  if first == usual then return now end
  local token = value()
  call('SET', KEYS[1], token, 'PX', ARGV[3])
  return {token, now}
end
-- Also where a server takes no writes (OOM, MISCONF, READONLY, NOREPLICAS): it
-- still knows who has the lock. If nobody has, it refuses once more, as an error
-- with a line.
local token = call('GET', KEYS[1])
if not token then return set(call) end
local left = call('PTTL', KEYS[1])
if string.sub(token, 11, 10 + #ARGV[4]) ~= ARGV[4] then return left .. ' ' .. token end
-- Our own lease: an earlier reply was lost.
if left < tonumber(ARGV[3]) then call('PEXPIRE', KEYS[1], ARGV[3]) end
return {token, now}
