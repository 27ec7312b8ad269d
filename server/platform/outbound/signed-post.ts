// Posts signed JSON to endpoints of users that take part in work, such as graders: retried, bounded, in turn.
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { createFairQueue } from '../../../lib/fair-queue.ts'
import type { Secrets } from '../storage/secrets.ts'
import { type AddressRules, type Resolve, resolve as resolveByDns } from './addresses.ts'
import { type PostAnswer, PostError, post } from './post.ts'
import { signatureHeaders } from './signature.ts'
import { BadTarget, readTarget } from './target.ts'

export interface SignedRequest {
  account_id: string
  url: string
  /** Which secret of the account signs it. */
  secret_name: string
  body: unknown
  /** Time of one try. */
  timeout_ms: number
  /** Largest answer. Default: 64 KiB. */
  bytes_max?: number
}

export interface Endpoints {
  /** The value of a 2xx answer in JSON. Throws PostError, or the signal's reason. */
  post(request: SignedRequest, signal: AbortSignal): Promise<unknown>
  /** What signs requests of an account, in the form of Standard Webhooks. */
  secret(account_id: string, name: string): string
  /** Why an address can never be asked; undefined if it can. */
  problem(url: string): { message: string; blocked: boolean } | undefined
}

interface Options {
  rules: AddressRules
  secrets: Pick<Secrets, 'derive'>
  version: string
  now(): number
  resolve?: Resolve
}

/** Requests at once, of all accounts and of one. */
const atOnce = { at_once: 128, at_once_per_account: 32 }
const answerBytesMax = 65_536
const bodyMax = 4_000_000
/** Waits before the second and the third try. */
const waits_ms = [500, 2000]
const retryAfterMax_ms = 30_000

export function createEndpoints({ rules, secrets, version, now, resolve = resolveByDns }: Options): Endpoints {
  const inTurn = createFairQueue(atOnce)

  function secret(account_id: string, name: string): string {
    const key = Buffer.from(secrets.derive(`endpoint ${account_id} ${name}`), 'base64url')
    return `whsec_${key.toString('base64')}`
  }

  async function attempt(request: SignedRequest, id: string, body: string, signal: AbortSignal): Promise<PostAnswer> {
    const { account_id, secret_name, url, timeout_ms, bytes_max = answerBytesMax } = request
    const headers = {
      'content-type': 'application/json',
      accept: 'application/json',
      'accept-encoding': 'identity',
      'user-agent': `Tunery/${version}`,
      ...signatureHeaders([secret(account_id, secret_name)], id, body, now()),
    }
    return post(url, { headers, body }, { rules, resolve, timeout_ms, bytes_max }, signal)
  }

  return {
    secret,
    problem(url) {
      try {
        const { url: address } = readTarget(url, rules)
        if (address.protocol === 'https:' || rules.allowsPrivate) return undefined
        return { message: 'it must begin with https://', blocked: false }
      } catch (error) {
        if (error instanceof BadTarget) return { message: error.message, blocked: error.blocked }
        throw error
      }
    },
    async post(request, signal) {
      const problem = this.problem(request.url)
      if (problem) throw new PostError(problem.message, false)
      const body = JSON.stringify(request.body)
      if (body.length > bodyMax) throw new PostError(`the request has more than ${bodyMax / 1e6} MB`, false)
      // The same for all tries: an endpoint may tell by it that it has answered already.
      const id = `msg_${randomUUID().replaceAll('-', '')}`
      for (let tries = 0; ; tries++) {
        const wait_ms = waits_ms[tries]
        try {
          const answer = await inTurn(request.account_id, () => attempt(request, id, body, signal), signal)
          if (answer.status >= 200 && answer.status < 300) return jsonFrom(answer)
          const passing = answer.status === 429 || answer.status >= 500
          const asked_ms = 1000 * Number(answer.headers['retry-after'])
          if (!passing || wait_ms === undefined) throw new PostError(`it answered ${shown(answer)}`, passing)
          await sleep(Math.min(retryAfterMax_ms, Math.max(wait_ms, asked_ms || 0)), undefined, { signal })
        } catch (error) {
          signal.throwIfAborted()
          if (!(error instanceof PostError) || !error.passing || wait_ms === undefined) throw error
          await sleep(wait_ms, undefined, { signal })
        }
      }
    },
  }
}

function jsonFrom({ body }: PostAnswer): unknown {
  try {
    return JSON.parse(body.toString('utf8'))
  } catch {
    throw new PostError('its answer is not JSON', false)
  }
}

/** The status, and the start of the body. */
const shown = ({ status, body }: PostAnswer) =>
  [status, body.subarray(0, 200).toString('utf8').replaceAll('\0', '\ufffd').trim()].filter(Boolean).join(': ')
