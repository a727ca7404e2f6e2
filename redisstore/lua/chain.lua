-- Put in front of the scripts of calls that belong to a chain.
-- ARGV, the last two: epoch; incarnation, '' for any.
local place = tonumber(ARGV[#ARGV - 1])

-- A fence record is the largest fence as "epoch seq", in epoch 1 as "seq", which
-- is what a store by itself writes. What is neither is smaller than any: neither
-- "nan" nor what does not fit was written here.
local function recorded(text)
  if not text then return 0, 0 end
  local epoch, seq = string.match(text, '^(%d+) (%d+)$')
  epoch, seq = tonumber(epoch or 1), tonumber(seq or text)
  if seq and seq >= 0 and seq < 562949953421311 and epoch < 16384 then return epoch, seq end
  return 0, 0
end
