// How much structure a JSON body may have: what reading it costs is told by its fields, lists and objects, not by its
// bytes.

/**
 * Fields, lists and objects of a body, all together. The largest conversation that is taken has fewer; reading so many
 * takes about a tenth of a second.
 */
export const jsonPartsMax = 65_536

const quote = 0x22
const backslash = 0x5c
const colon = 0x3a
const openBracket = 0x5b
const openBrace = 0x7b

/**
 * Whether a JSON text in UTF-8 has more parts than `max`; looks at each byte once, and at none of a text that is too
 * short for it.
 */
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

export const tooManyParts = `The body has more than ${jsonPartsMax} fields, lists and objects. Send less in one request.`
