// Scans response bytes for the `usage` object without parsing the rest, as embeddings and logprobs can be large.

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

/** The last `usage` object in JSON bytes; undefined if there is none. */
export function findUsage(bytes: Buffer): TokenCounts | undefined {
  for (let at = bytes.lastIndexOf(key); at !== -1; at = at === 0 ? -1 : bytes.lastIndexOf(key, at - 1)) {
    // A quote after a backslash is inside a string.
    if (bytes[at - 1] === backslash) continue
    const object = objectAfter(bytes, at + key.length)
    if (object) return toTokenCounts(object)
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

/** Reads the counts of a parsed `usage` object. */
export function toTokenCounts(usage: Record<string, unknown>): TokenCounts {
  const details = (usage.prompt_tokens_details ?? {}) as Record<string, unknown>
  return {
    prompt_tokens: count(usage.prompt_tokens),
    completion_tokens: count(usage.completion_tokens),
    cached_tokens: count(details.cached_tokens),
  }
}

const count = (value: unknown) => (Number.isSafeInteger(value) && (value as number) > 0 ? (value as number) : 0)
