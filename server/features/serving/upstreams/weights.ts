// The header x-weights of an answer by an upstream: what that server reports.
import { headerText } from '../../../../lib/header-text.ts'
import type { Headers } from '../http-client/response.ts'

/** A header of a server that is another Tunery engine. */
const plain = /^[\x20-\x7e]{1,1000}$/

/**
 * `upstream=ID; reports=NAME`, then what an engine behind it says of its files. The name is undefined if there is none.
 */
export function upstreamWeights(model: string, reported: string | undefined, headers: Headers): string {
  const name = reported?.slice(0, 256)
  const header = headers['x-weights']
  return [
    `upstream=${headerText(model)}`,
    ...(name ? [`reports=${headerText(name)}`] : []),
    ...(header && plain.test(header) ? [header] : []),
  ].join('; ')
}
