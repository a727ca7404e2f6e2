-- Put behind exclusive.lua, grant.lua and grant_chain.lua, in front of acquire.lua
-- and enter.lua: nothing later may be here, and what an earlier epoch has left
-- makes room. Its fence is smaller than any of this epoch.
local last = recorded(call('GET', KEYS[2]))
if last > place then return refused('fence record', last) end
local former = call('GET', KEYS[1])
local _, of = stored(former or '')
if of and of > place then return refused('key', of) end
if of and of < place then
  local left = call('PTTL', KEYS[1])
  call('DEL', KEYS[1])
  shorter(left, tonumber(ARGV[3]))
end
