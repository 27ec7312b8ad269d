// The Lua scripts by which processes count an account's requests together. One account's keys have its id as their
// `{tag}`; each has a time to live.

import { version_s } from '../redis/changes.ts'
import { script } from '../redis/connection.ts'

export const minute_ms = 60_000
/** A process that holds slots renews them; those of a killed one are free after this. */
export const slotLease_ms = 10_000
/** Longer than the day that they count. */
const dayTtl_ms = 2 * 86_400_000

const clock = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
`

/** Ends the script with 'outdated' unless the caller was read at the account's current version. */
const requireVersion = `
local version = redis.call('GET', KEYS[1])
if not version then
  version = ARGV[2]
  redis.call('SET', KEYS[1], version, 'EX', ${version_s})
end
if ARGV[1] ~= '*' and ARGV[1] ~= version then return {'outdated', version} end
`

/** Counts into `others` and `own` the slots in use. Removes the slots of processes that ended without a word. */
const readSlots = (key: string, me: string) => `
local held = redis.call('HGETALL', ${key})
for i = 1, #held, 2 do
  local count, till = string.match(held[i + 1], '^(%d+) (%d+)$')
  if held[i] == ${me} then own = tonumber(count)
  elseif tonumber(till) <= now then redis.call('HDEL', ${key}, held[i])
  else others = others + tonumber(count) end
end
`
const writeSlots = (key: string, me: string) => `
if own > 0 then
  redis.call('HSET', ${key}, ${me}, string.format('%d %d', own, now + ${slotLease_ms}))
  redis.call('PEXPIRE', ${key}, ${slotLease_ms})
else redis.call('HDEL', ${key}, ${me}) end
`

/**
 * Decides about one request, and counts it if it is admitted.
 *
 * KEYS: version, minute, day, slots. ARGV: version at which the caller was read ('*': any), a new version in case there
 * is none, limits of the minute, the day and the slots (-1: none), what is asked for ('m', 'd', 's'), the process, the
 * slots that it holds, and '1' to admit beyond what the database has granted.
 *
 * Replies `{status, version, minute, ms to its end, day, slots, granted}`. Status: ok, outdated, slots, day, minute; or
 * `grant`, if the database has to grant more of the day first.
 */
export const admitScript = script(`${requireVersion}${clock}
local minute_max, day_max, slots_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local wants_minute = string.find(ARGV[6], 'm', 1, true)
local wants_day = string.find(ARGV[6], 'd', 1, true)
local wants_slot = string.find(ARGV[6], 's', 1, true)
local others, own = 0, 0
if wants_slot or ARGV[6] == '' then
  ${readSlots('KEYS[4]', 'ARGV[7]')}
  own = math.max(own, tonumber(ARGV[8]))
end
local minute = tonumber(redis.call('GET', KEYS[2]) or 0)
local left = minute > 0 and redis.call('PTTL', KEYS[2]) or ${minute_ms}
local day = redis.call('HMGET', KEYS[3], 'used', 'granted')
local used, granted = tonumber(day[1]), tonumber(day[2])
local function reply(status)
  return {status, version, minute, left, used or -1, others + own, granted or -1}
end
if wants_slot and slots_max >= 0 and others + own >= slots_max then return reply('slots') end
if wants_day then
  if not used then return reply('grant') end
  if day_max >= 0 and used >= day_max then return reply('day') end
end
if wants_minute and minute_max >= 0 and minute >= minute_max then return reply('minute') end
if wants_day then
  local beyond = day_max < 0 or ARGV[9] == '1'
  if used >= granted and not beyond then return reply('grant') end
  used = redis.call('HINCRBY', KEYS[3], 'used', 1)
  if beyond then granted = redis.call('HINCRBY', KEYS[3], 'granted', 1) end
end
if wants_minute then
  minute = redis.call('INCR', KEYS[2])
  if minute == 1 or left < 0 then
    left = ${minute_ms}
    redis.call('PEXPIRE', KEYS[2], left)
  end
end
if wants_slot then
  own = own + 1
  ${writeSlots('KEYS[4]', 'ARGV[7]')}
end
return reply('ok')`)

/** How long a grant can be sent again. */
const retell_ms = 600_000

/**
 * KEYS: day, mark of this grant. ARGV: requests that the database has granted, and its sum with them. Of a day that
 * Redis does not know, all but the new grant counts as used. A grant that is sent twice counts once.
 */
export const grantScript = script(`
if not redis.call('SET', KEYS[2], '1', 'NX', 'PX', ${retell_ms}) then return {} end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HINCRBY', KEYS[1], 'granted', ARGV[1])
else redis.call('HSET', KEYS[1], 'used', ARGV[2] - ARGV[1], 'granted', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ${dayTtl_ms})
return {}`)

/** KEYS: slots. ARGV: process. Frees one of its slots. */
export const releaseScript = script(`${clock}local others, own = 0, 0
${readSlots('KEYS[1]', 'ARGV[1]')}
own = own - 1
${writeSlots('KEYS[1]', 'ARGV[1]')}
return {}`)

/** KEYS: slots. ARGV: process, the slots that it holds, '1' if that is exact, else more may be about to be counted. */
export const renewScript = script(`${clock}local others, own = 0, 0
${readSlots('KEYS[1]', 'ARGV[1]')}
own = ARGV[3] == '1' and tonumber(ARGV[2]) or math.max(own, tonumber(ARGV[2]))
${writeSlots('KEYS[1]', 'ARGV[1]')}
return {}`)

/**
 * KEYS: minute, day. ARGV: requests to add to the minute, ms to its end, requests to add to the day. A minute that
 * began after Redis had lost its data ends with the one that it interrupted.
 */
export const mergeScript = script(`
if tonumber(ARGV[1]) > 0 then
  redis.call('INCRBY', KEYS[1], ARGV[1])
  local left = redis.call('PTTL', KEYS[1])
  if left < 0 or left > tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
end
if tonumber(ARGV[3]) > 0 and redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('HINCRBY', KEYS[2], 'used', ARGV[3])
  redis.call('HINCRBY', KEYS[2], 'granted', ARGV[3])
end
return {}`)

/**
 * KEYS: version, counter. ARGV: as for admitScript, and ms of the window. Replies `{status, version, count, ms left}`.
 */
export const readScript = script(`${requireVersion}
local count = redis.call('INCR', KEYS[2])
if count == 1 then redis.call('PEXPIRE', KEYS[2], ARGV[3]) end
return {'ok', version, count, redis.call('PTTL', KEYS[2])}`)
