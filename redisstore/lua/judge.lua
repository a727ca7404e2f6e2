-- Put behind chain.lua where the epochs in the data are judged.

-- stored reads the fence, as text, and the epoch of a token; nothing of what is
-- none. A lease has no bare quotes, so the first ones are those behind it.
local function stored(token)
  if string.sub(token, 1, 10) ~= '{"lease":"' then return end
  local fence, epoch = string.match(token, '","fence":"(%d+)","epoch":(%d+),"seq":', 11)
  return fence, tonumber(epoch)
end

local function refused(what, epoch)
  return redis.error_reply(string.format('EPOCH the %s is of epoch %.0f, the call of %d', what, epoch, place))
end

-- shorter tells watchers that what they wait for may end sooner than it did.
local function shorter(left, ttl)
  if left < 0 or left > ttl then
    redis.pcall(redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH', KEYS[1] .. ':wake', '')
  end
end
