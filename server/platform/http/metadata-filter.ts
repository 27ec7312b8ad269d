import { ApiError } from '../../../contract/errors.ts'
import type { MetadataFilter } from '../db/metadata.ts'

/**
 * The filter of a query with `metadata[key]=value`, or with `metadata=null` for what has no pairs; see `MetadataQuery`.
 * Throws invalid_request.
 */
export function metadataFilter(
  query: { metadata?: '' | 'null' | undefined } & Record<string, unknown>,
): MetadataFilter {
  const pairs = Object.entries(query).flatMap(([name, value]) => {
    const key = /^metadata\[(.*)\]$/s.exec(name)?.[1]
    return key === undefined ? [] : [[key, String(value)]]
  })
  const refuse = (why: string) => new ApiError('invalid_request', `'metadata': ${why}`, { param: 'metadata' })
  if (pairs.length > 16) throw refuse('has more than 16 pairs.')
  if (pairs.some(([key]) => key === '')) throw refuse("write pairs as 'metadata[key]=value'.")
  if (query.metadata !== undefined && pairs.length > 0)
    throw refuse('null finds what has no pair; leave it or the pairs out.')
  if (query.metadata !== undefined) return 'none'
  return pairs.length > 0 ? Object.fromEntries(pairs) : undefined
}
