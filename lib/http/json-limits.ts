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

/** Strings beyond this length are skipped by the faster search of Buffer: pictures are strings of megabytes. */
const longString = 256

/** Whether a JSON text in UTF-8 has more than `max` fields, lists and objects. Scans each byte once. */
export function hasTooManyParts(json: Uint8Array, max = jsonPartsMax): boolean {
  if (json.length <= max) return false
  const buffer = Buffer.from(json.buffer, json.byteOffset, json.length)
  let parts = 0
  let inString = false
  let scanned = 0
  for (let at = 0; at < json.length; at++) {
    const byte = json[at]!
    if (byte === quote) {
      inString = !inString
      scanned = 0
    } else if (inString) {
      if (byte === backslash) at++
      if (++scanned > longString) {
        at = endOfString(buffer, at + 1)
        if (at < 0) return false
        inString = false
        scanned = 0
      }
    } else if ((byte === colon || byte === openBracket || byte === openBrace) && ++parts > max) return true
  }
  return false
}

/** Where the string that continues at `from` ends; -1 if it does not. */
function endOfString(json: Buffer, from: number): number {
  for (let end = json.indexOf(quote, from); end >= 0; end = json.indexOf(quote, end + 1)) {
    let backslashes = 0
    while (end - backslashes > from && json[end - backslashes - 1] === backslash) backslashes++
    if (backslashes % 2 === 0) return end
  }
  return -1
}

const parts = `${jsonPartsMax} fields, lists and objects`
export const tooManyParts = `The body has more than ${parts}. Send less in one request.`
