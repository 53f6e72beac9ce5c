-- Requests for wrk, and its result as one line of JSON.
--
--     wrk -s requests.lua URL -- json MODEL 1x4          Open Inference Protocol, numbers as JSON
--     wrk -s requests.lua URL -- binary MODEL 1x4        the same, numbers as bytes
--     wrk -s requests.lua URL -- post PATH BODY          any JSON to any path
--
-- The input is called x and is of FP32; INPUT in the environment names another one.

local function count(shape)
   local all = 1
   for extent in shape:gmatch("%d+") do all = all * tonumber(extent) end
   return all
end

local function infer(kind, model, shape)
   local size, name = count(shape), os.getenv("INPUT") or "x"
   local head = '{"name":"' .. name .. '","datatype":"FP32","shape":[' .. shape:gsub("x", ",") .. "],"
   wrk.path = "/v2/models/" .. model .. "/infer"
   if kind == "json" then
      local values = {}
      for i = 0, size - 1 do values[i + 1] = tostring(i) end
      wrk.headers["Content-Type"] = "application/json"
      wrk.body = '{"inputs":[' .. head .. '"data":[' .. table.concat(values, ",") .. "]}]}"
   else
      local ffi = require("ffi")
      local values = ffi.new("float[?]", size)
      for i = 0, size - 1 do values[i] = i end
      local text = '{"inputs":[' .. head .. '"parameters":{"binary_data_size":' .. size * 4
         .. '}}],"parameters":{"binary_data_output":true}}'
      wrk.headers["Content-Type"] = "application/octet-stream"
      wrk.headers["Inference-Header-Content-Length"] = tostring(#text)
      wrk.body = text .. ffi.string(values, size * 4)
   end
end

function init(arguments)
   wrk.method = "POST"
   if arguments[1] == "post" then
      wrk.path, wrk.body = arguments[2], arguments[3]
      wrk.headers["Content-Type"] = "application/json"
   else
      infer(arguments[1], arguments[2], arguments[3])
   end
   -- What does not change is put together once, and not for each request.
   local text = wrk.format()
   request = function() return text end
end

function done(summary, latency, _)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f,'
         .. '"not_ok":%d,"broken":%d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
      latency:percentile(99) / 1e3, latency.max / 1e3, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout))
end
