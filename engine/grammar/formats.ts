// The formats of strings that can be enforced, as patterns. Each is what its standard allows or less of it, never more.
const label = '[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?'
const date =
  '(\\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))' +
  '|(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)'
const time = '([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)'
const count = '\\d{1,6}'
const days = `(${count}Y(${count}M)?(${count}D)?|${count}M(${count}D)?|${count}D)`
const hours = `T(${count}H(${count}M)?(${count}S)?|${count}M(${count}S)?|${count}S)`
const byte = '(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)'
const hex = '[0-9a-fA-F]{1,4}'
const path = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

const sources: Record<string, string> = {
  date: `^${date}$`,
  time: `^${time}$`,
  'date-time': `^${date}T${time}$`,
  duration: `^P(${days}(${hours})?|${hours}|${count}W)$`,
  email: '^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]+(-[A-Za-z0-9]+)*\\.)+[A-Za-z]{2,10}$',
  hostname: `^${label}(\\.${label}){0,3}$`,
  ipv4: `^(${byte}\\.){3}${byte}$`,
  ipv6:
    `^((${hex}:){7}${hex}|(${hex}:){1,7}:|(${hex}:){1,6}:${hex}|(${hex}:){1,5}(:${hex}){1,2}|(${hex}:){1,4}(:${hex}){1,3}` +
    `|(${hex}:){1,3}(:${hex}){1,4}|(${hex}:){1,2}(:${hex}){1,5}|${hex}:(:${hex}){1,6}|:((:${hex}){1,7}|:))$`,
  uuid: '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$',
  uri: `^[a-z][a-z0-9+.-]*://[A-Za-z0-9]+([.-][A-Za-z0-9]+)*(:[1-9]\\d{0,3})?(/${path}*)*(\\?(${path}|[/?])*)?(#(${path}|[/?])*)?$`,
}

/** The names of the formats that can be enforced. */
export const knownFormats = Object.keys(sources)

/** The pattern of a format, or null where it is not known. */
export function formatPattern(format: string): string | null {
  return Object.hasOwn(sources, format) ? sources[format]! : null
}
