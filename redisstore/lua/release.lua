-- KEYS: 1 lock. ARGV: 1 lease as JSON, without its opening quote; 2 offset of
-- its last byte in the token; 3 wake-up channel; 4 ms to keep the lock, '' to
-- free it. Replies 1 owned, 2 taken, 3 gone.
local found = redis.call('GETRANGE', KEYS[1], '10', ARGV[2])
if found ~= ARGV[1] then return found == '' and redis.call('PTTL', KEYS[1]) == -2 and 3 or 2 end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
else
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
end
-- pcall: who may not publish has released all the same. Only servers with
-- sharded channels (7.0) know their version; probe.lua asks the same question.
redis.pcall(redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH', ARGV[3], '')
return 1
