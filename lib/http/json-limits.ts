// Limits the structure of JSON bodies: the cost of parsing depends on fields, lists and objects more than on bytes.

/**
 * Most fields, lists and objects of a body together. The largest accepted conversation has fewer; parsing this many
 * takes about 0.1 s.
 */
export const jsonPartsMax = 65_536

const quote = 0x22
const backslash = 0x5c
const colon = 0x3a
const openBracket = 0x5b
const openBrace = 0x7b

/** Whether a JSON text in UTF-8 has more than `max` fields, lists and objects. Scans each byte once. */
export function hasTooManyParts(json: Uint8Array, max = jsonPartsMax): boolean {
  if (json.length <= max) return false
  let parts = 0
  let inString = false
  for (let at = 0; at < json.length; at++) {
    const byte = json[at]!
    if (byte === quote) inString = !inString
    else if (inString) {
      if (byte === backslash) at++
    } else if ((byte === colon || byte === openBracket || byte === openBrace) && ++parts > max) return true
  }
  return false
}

const parts = `${jsonPartsMax} fields, lists and objects`
export const tooManyParts = `The body has more than ${parts}. Send less in one request.`
