import { readUntrusted } from '../storage/untrusted-files.ts'
import type { ReadRequest, ReadResult } from './reader/main.ts'

/**
 * Reads a stored file in a child process. Resolves with `unreadable` for a bad file; rejects on internal errors only.
 */
export async function readFileOf(request: ReadRequest, size_bytes: number, signal?: AbortSignal): Promise<ReadResult> {
  const read = await readUntrusted('server/datasets/reader/main.ts', request, size_bytes, signal)
  if ('stdout' in read) return JSON.parse(read.stdout) as ReadResult
  return { unreadable: { code: 'file_not_readable', message: `The file cannot be read: ${read.stopped}` } }
}
