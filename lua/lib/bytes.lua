-- bytes: fixed-width packing and 32-bit operations of all scripts.
-- Redis and Valkey provide `bit` and `struct`. If a server's Lua lacks them (fakeredis), plain Lua implements the same few
-- formats. Formats: '>' first, then i4 (signed), I2 I4 I6 (unsigned), B (one byte), c8 c14 (a string of this many bytes).
-- Results of the operations are signed, as those of `bit` are.
local band, bor, bxor, pack_bytes, unpack_bytes
if bit and struct then
  band, bor, bxor, pack_bytes, unpack_bytes = bit.band, bit.bor, bit.bxor, struct.pack, struct.unpack
else
  local function fields(format)
    local list = {}
    for kind, width in string.gmatch(string.sub(format, 2), '(%a)(%d*)') do
      list[#list + 1] = {width = (kind == 'B') and 1 or tonumber(width), signed = (kind == 'i'), text = (kind == 'c')}
    end
    return list
  end
  local function signed(value)
    if value >= 2147483648 then return value - 4294967296 end
    return value
  end
  local function common(a, b)
    local result, place = 0, 1
    while a > 0 and b > 0 do
      local abit, bbit = a % 2, b % 2
      if abit + bbit == 2 then result = result + place end
      a, b, place = (a - abit) / 2, (b - bbit) / 2, place * 2
    end
    return result
  end
  band = function(a, b)
    return signed(common(a % 4294967296, b % 4294967296))
  end
  bor = function(a, b)
    a, b = a % 4294967296, b % 4294967296
    return signed(a + b - common(a, b))
  end
  bxor = function(a, b)
    a, b = a % 4294967296, b % 4294967296
    return signed(a + b - 2 * common(a, b))
  end
  pack_bytes = function(format, ...)
    local values, out = {...}, {}
    for i, field in ipairs(fields(format)) do
      if field.text then
        out[i] = string.sub(values[i], 1, field.width)
      else
        local value, chars = values[i] % (256 ^ field.width), {}
        for place = field.width, 1, -1 do
          local low = value % 256
          chars[place], value = string.char(low), (value - low) / 256
        end
        out[i] = table.concat(chars)
      end
    end
    return table.concat(out)
  end
  unpack_bytes = function(format, text, position)
    local out, at = {}, position or 1
    for i, field in ipairs(fields(format)) do
      local value = 0
      if field.text then
        value = string.sub(text, at, at + field.width - 1)
      else
        for place = at, at + field.width - 1 do value = value * 256 + string.byte(text, place) end
        if field.signed and value >= 256 ^ field.width / 2 then value = value - 256 ^ field.width end
      end
      out[i], at = value, at + field.width
    end
    out[#out + 1] = at
    return unpack(out)
  end
end
