-- Put behind exclusive.lua, in front of renewals and releases: what an earlier
-- epoch has left is not there.
local found = redis.call('GET', KEYS[1])
local _, epoch = stored(found or '')
if epoch and epoch > place then return refused('key', epoch) end
if epoch and epoch < place then return 3 end
