-- Takes a free lock. Replies: server time (granted, token as sent with
-- seq = clock + 1 s), its negative (late, nothing changed), an array with the
-- stored token and the server time (granted otherwise), or the text
-- "pttl token" (held by others).
local token = call('GET', KEYS[1])
if not token then
  -- The lock comes last: a script that is refused halfway (a record of another
  -- type) must not leave it.
  local seq = record()
  token = value(seq)
  call('SET', KEYS[1], token, 'PX', ARGV[3])
  if seq == usual then return now end
  return {token, now}
end
local left = call('PTTL', KEYS[1])
if string.sub(token, 11, 10 + #ARGV[1]) ~= ARGV[1] then return left .. ' ' .. token end
-- Our own lease: an earlier reply was lost.
if left < tonumber(ARGV[3]) then call('PEXPIRE', KEYS[1], ARGV[3]) end
return {token, now}
