-- KEYS: 1 lock. ARGV: 1 lease as JSON, without its opening quote; 2 offset of
-- its last byte in the token; 3 TTL in ms. Replies 1 owned, 2 taken, 3 gone.
local found = redis.call('GETRANGE', KEYS[1], '10', ARGV[2])
if found ~= ARGV[1] then return found == '' and redis.call('PTTL', KEYS[1]) == -2 and 3 or 2 end
-- Only ever longer: an older renewal may arrive after a newer one.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 1
