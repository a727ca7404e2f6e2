-- Gives a lease the token of the hold that it serves now, only ever forward.
-- KEYS: 1 lock. ARGV: 1 lease as JSON, without its opening quote; 2 offset of
-- its last byte in the token; 3 the token; 4 its fence. Replies 1 owned, 2
-- taken, 3 gone.
local token = redis.call('GET', KEYS[1])
if not token then return 3 end
-- A blank at the end marks an explicit hold: that has a lease for each entrant.
if string.sub(token, 11, ARGV[2] + 1) ~= ARGV[1] or string.byte(token, -1) == 32 then return 2 end
local fence, epoch = string.match(token, '","fence":"(%d+)","epoch":(%d+)', 11)
-- As text: fences of later epochs than 15 are larger than 2^53. The epoch is the
-- key's, to which the lease was moved, perhaps, after it was granted.
if fence and (#fence < #ARGV[4] or #fence == #ARGV[4] and fence < ARGV[4]) then
  local moved = string.gsub(ARGV[3], '"epoch":%d+', '"epoch":' .. epoch, 1)
  redis.call('SET', KEYS[1], moved, 'KEEPTTL')
end
return 1
