// Fetches the pictures that rows of an upload have at addresses, each once, into a folder for the reading of the rows.
import { writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type PictureFetcher, PictureNotFetched, shownAddress } from '../../platform/outbound/pictures.ts'
import { type Fetched, fetchedIndex } from './reader/fetched-pictures.ts'

/** At once; the account's requests have permits of their own beside these. */
const atOnce = 6
/** The whole may take this long, and meet this many silent hosts: a dataset must not hold up others for hours. */
const all_ms = 20 * 60_000
const silentMax = 60
/** From this many on nothing more is asked of one host. */
const silentOfHostMax = 6
/** Free disk space is looked at once more after this many bytes. */
const diskStep_bytes = 50_000_000

interface Upload {
  account_id: string
  addresses: string[]
  folder: string
}

/**
 * Writes files and an index of what became of each address. Pictures that are not fetched are problems of their rows;
 * rejects only if the signal aborts, `requireDisk` does, or a file cannot be
 * written. Resolves with the bytes of all files.
 */
export async function fetchPictures(
  fetcher: PictureFetcher,
  { account_id, addresses, folder }: Upload,
  requireDisk: (bytes: number) => Promise<void>,
  bytes_max: number,
  signal: AbortSignal,
): Promise<number> {
  const index: Record<string, Fetched> = {}
  const deadline = AbortSignal.timeout(all_ms)
  const failure = new AbortController()
  const ended = AbortSignal.any([signal, deadline, failure.signal])
  const silent = new Map<string, number>()
  let allSilent = 0
  let bytes = 0
  let checked = 0
  let next = 0

  function refusal(address: string): string | undefined {
    if (deadline.aborted) return `the pictures of this upload took more than ${all_ms / 60_000} minutes`
    if (allSilent >= silentMax) return `${silentMax} other addresses of this upload gave no answer`
    if ((silent.get(hostOf(address)) ?? 0) >= silentOfHostMax)
      return `its host gave no answer to ${silentOfHostMax} other addresses`
    return bytes > bytes_max ? `the others have ${Math.round(bytes / 1e6)} MB, the most of an upload` : undefined
  }

  async function fetchOne(address: string, number: number): Promise<Fetched> {
    const refused = refusal(address)
    if (refused) return { problem: `${shownAddress(address)} was not fetched: ${refused}.` }
    try {
      const file = await fetcher.fetch(account_id, address, ended)
      bytes += file.length
      if (bytes - checked > diskStep_bytes) {
        checked = bytes
        await requireDisk(diskStep_bytes)
      }
      const name = `${number}.picture`
      await writeFile(path.join(folder, name), file, { mode: 0o600 })
      return { file: name }
    } catch (error) {
      if (error instanceof PictureNotFetched) {
        if (error.silent) {
          allSilent++
          silent.set(hostOf(address), (silent.get(hostOf(address)) ?? 0) + 1)
        }
        return { problem: error.message }
      }
      signal.throwIfAborted()
      if (deadline.aborted) return { problem: `${shownAddress(address)} was not fetched: ${refusal(address)}.` }
      throw error
    }
  }

  async function work(): Promise<void> {
    for (;;) {
      const number = next++
      const address = addresses[number]
      if (address === undefined || failure.signal.aborted) return
      index[address] = await fetchOne(address, number).catch((error) => {
        failure.abort(error)
        throw error
      })
    }
  }

  if (addresses.length > 0) await requireDisk(diskStep_bytes)
  const workers = await Promise.allSettled(Array.from({ length: Math.min(atOnce, addresses.length) }, work))
  if (workers.some(({ status }) => status === 'rejected')) throw failure.signal.reason
  await writeFile(path.join(folder, fetchedIndex), JSON.stringify(index), { mode: 0o600 })
  return bytes
}

const hostOf = (address: string) => URL.parse(address)?.host ?? ''
