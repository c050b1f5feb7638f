-- A browser that goes from category to category without a pause, and what all of them saw.
local turn = 0

function request()
   turn = turn + 1
   return wrk.format("GET", wrk.path .. turn % CATEGORIES)
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"bytes":%d,"duration_us":%d,"errors":%d,"p50_us":%d,"p90_us":%d}\n',
      summary.requests, summary.bytes, summary.duration,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout,
      latency:percentile(50), latency:percentile(90)))
end
