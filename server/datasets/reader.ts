import { readUntrusted } from '../storage/untrusted-files.ts'
import type { ReadRequest, ReadResult } from './reader/main.ts'

/**
 * Reads a stored file. Resolves with what was found, or why it cannot be read; rejects only where the service itself is
 * at fault.
 */
export async function readFileOf(request: ReadRequest, size_bytes: number, signal?: AbortSignal): Promise<ReadResult> {
  const read = await readUntrusted('server/datasets/reader/main.ts', request, size_bytes, signal)
  if ('printed' in read) return JSON.parse(read.printed) as ReadResult
  return { unreadable: { code: 'file_not_readable', message: `The file cannot be read: ${read.stopped}` } }
}
