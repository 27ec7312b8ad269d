// Fetches pictures from addresses in rows and requests, where the operator has turned that on.
import { createFairQueue } from '../../../lib/fair-queue.ts'
import { PictureError, pictureBytesMax, readHeader } from '../../../pictures/formats.ts'
import { type AddressRules, type Resolve, resolve as resolveByDns } from './addresses.ts'
import { GetError, get } from './get.ts'

/** A picture that could not be fetched; the message names its address and the reason. */
export class PictureNotFetched extends PictureError {
  /** Whether its host gave no answer. */
  readonly silent: boolean
  constructor(message: string, silent: boolean) {
    super(message)
    this.silent = silent
  }
}

export interface PictureFetcher {
  /** False: nothing is fetched, and addresses are refused. */
  readonly enabled: boolean
  /**
   * The file at an address, which is a picture by its header; it waits for a permit of the account. Throws
   * PictureNotFetched, or the signal's reason.
   */
  fetch(account_id: string, address: string, signal: AbortSignal): Promise<Buffer>
}

interface Options {
  enabled: boolean
  rules: AddressRules
  version: string
  onFetched(outcome: 'fetched' | 'failed'): void
  resolve?: Resolve
  timeout_ms?: number
  at_once?: { at_once: number; at_once_per_account: number }
}

/** How many pictures are fetched at once, for all accounts and for one. */
const fetchesMax = { at_once: 32, at_once_per_account: 8 }
const addressMax = 8192

/** An address for messages. What is behind `?` is often a secret that opens it. */
export function shownAddress(address: string): string {
  const parsed = URL.parse(address)
  const text = parsed ? `${parsed.origin}${parsed.pathname}${parsed.search && '?…'}` : address
  return text.length > 200 ? `${text.slice(0, 199)}…` : text
}

export function createPictureFetcher({
  enabled,
  rules,
  version,
  onFetched,
  resolve = resolveByDns,
  timeout_ms = 10_000,
  at_once = fetchesMax,
}: Options): PictureFetcher {
  const inTurn = createFairQueue(at_once)
  const headers = { accept: 'image/png, image/jpeg, image/webp, image/gif', 'user-agent': `Tunery/${version}` }
  const options = { rules, resolve, timeout_ms, bytes_max: pictureBytesMax, headers }
  return {
    enabled,
    async fetch(account_id, address, signal) {
      const failed = (reason: string, silent = false) => {
        onFetched('failed')
        return new PictureNotFetched(`${shownAddress(address)} could not be fetched: ${reason}.`, silent)
      }
      if (address.length > addressMax) throw failed(`its address has more than ${addressMax} characters`)
      try {
        const file = await inTurn(account_id, () => get(address, options, signal), signal)
        readHeader(file)
        onFetched('fetched')
        return file
      } catch (error) {
        if (error instanceof GetError) throw failed(error.message, error.silent)
        if (error instanceof PictureError) throw failed(error.message.replace(/\.$/, ''))
        throw error
      }
    },
  }
}
