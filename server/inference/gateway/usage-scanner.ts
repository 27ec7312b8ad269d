// Finds what an answer used in its bytes, without parsing the rest: vectors and log-probabilities can be long.

export interface TokenCounts {
  prompt_tokens: number
  completion_tokens: number
  cached_tokens: number
}

const key = Buffer.from('"usage"')
const quote = 0x22
const backslash = 0x5c
const open = 0x7b
const close = 0x7d

/** The `usage` object of a JSON answer; undefined where it has none. */
export function usageIn(bytes: Buffer): TokenCounts | undefined {
  for (let at = bytes.lastIndexOf(key); at !== -1; at = at === 0 ? -1 : bytes.lastIndexOf(key, at - 1)) {
    // With a backslash before it, it is the end of a longer string.
    if (bytes[at - 1] === backslash) continue
    const object = objectAfter(bytes, at + key.length)
    if (object) return countsOf(object)
  }
  return undefined
}

function objectAfter(bytes: Buffer, from: number): Record<string, unknown> | undefined {
  let at = from
  while (bytes[at] === 0x20 || bytes[at] === 0x3a || bytes[at] === 0x0a || bytes[at] === 0x09 || bytes[at] === 0x0d)
    at++
  if (bytes[at] !== open) return undefined
  let depth = 0
  let inString = false
  for (let last = at; last < bytes.length; last++) {
    const byte = bytes[last]
    if (byte === quote && bytes[last - 1] !== backslash) inString = !inString
    else if (inString) continue
    else if (byte === open) depth++
    else if (byte === close && --depth === 0) {
      try {
        return JSON.parse(bytes.toString('utf8', at, last + 1))
      } catch {
        return undefined
      }
    }
  }
  return undefined
}

/** The counts of a `usage` object. */
export function countsOf(usage: Record<string, unknown>): TokenCounts {
  const details = (usage.prompt_tokens_details ?? {}) as Record<string, unknown>
  return {
    prompt_tokens: count(usage.prompt_tokens),
    completion_tokens: count(usage.completion_tokens),
    cached_tokens: count(details.cached_tokens),
  }
}

const count = (value: unknown) => (Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0)
