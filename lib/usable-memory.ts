import { totalmem } from 'node:os'

/** Memory that this process may use, in bytes: the machine's, or what its container is limited to. */
export function usableMemory(): number {
  const limit = process.constrainedMemory()
  return Math.min(totalmem(), limit > 0 ? limit : Number.POSITIVE_INFINITY)
}
