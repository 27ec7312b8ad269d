// The header Idempotency-Key: a retry of a creating request creates nothing and gets the answer of the first request.
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { Route } from '../../../contract/route.ts'
import type { Trx } from '../db/open.ts'
import { requirePermission } from './auth.ts'
import type { Caller } from './caller.ts'
import { digestMultipart } from './multipart.ts'

declare module 'fastify' {
  interface FastifyInstance {
    idempotency?: Idempotency
    /** Handlers of the mounted `GET /path/{param}`, by the path without its last parameter. */
    itemReaders?: Map<string, ItemReader>
  }
  interface FastifyRequest {
    /** Set on form requests with an Idempotency-Key: gives the digest of the form once all of it has been read. */
    formDigest: (() => string) | null
  }
}

interface Creation {
  fingerprint: string
  target: string
  /** Undefined until the answer is stored, and if a crash lost it. */
  answer: string | undefined
  /** Unix milliseconds. */
  created_at: number
}

/** Another process has created something under the same key since this request looked. */
export class KeyTaken extends Error {}

export interface Idempotency {
  /** Finds what was created under a key of the account. */
  find(account_id: string, key: string): Promise<Creation | undefined>
  /** Records what is created under a key, in the transaction that creates it. Throws KeyTaken, which must end that. */
  mark(trx: Trx, account_id: string, key: string, fingerprint: string, target: string): Promise<void>
  storeAnswer(account_id: string, key: string, answer: string): Promise<void>
  forget(account_id: string, key: string): Promise<void>
}

interface ItemReader {
  route: Route
  /** The name of the path's last parameter: `name` where its objects are addressed by name. */
  parameter: string
  /** `item` is the value of the last parameter. */
  read(item: string, caller: Caller, request: FastifyRequest, reply: FastifyReply): Promise<unknown>
}

export const isCreateRoute = (route: Route) => 201 in route.responses || route.creates === true

/** Requests in flight in this process, by account and key: a second request with the same key waits for the first. */
const inFlight = new Map<string, Promise<unknown>>()

/** How long a request waits for the answer that another process is about to store. */
const answerWait_ms = 5000
const answerPoll_ms = 50
/** An answer that is missing for longer was lost in a crash. The clocks of two servers may differ by as much. */
const answerLost_ms = 60_000

/**
 * Runs `create` at most once in 24 hours per Idempotency-Key; without the header, runs it always. `create` must pass
 * the caller that it receives to `recordAuditEntry`.
 */
export async function runIdempotent(
  route: Route,
  request: FastifyRequest,
  reply: FastifyReply,
  caller: Caller,
  create: (caller: Caller) => Promise<object>,
): Promise<object> {
  const key = keyIn(request)
  const { idempotency } = request.server
  if (!key || !idempotency) return create(caller)
  const { account_id } = caller
  const name = `${account_id} ${key}`
  while (inFlight.has(name)) await inFlight.get(name)
  const work = createOrReplay()
  const settled = work.catch(() => {}).finally(() => inFlight.delete(name))
  inFlight.set(name, settled)
  return work

  async function createOrReplay(): Promise<object> {
    const existing = await idempotency!.find(account_id, key!)
    if (existing) return replay(existing, await fingerprintNow(route, request, caller))
    if (route.consumes) request.formDigest = () => ''
    let marked = false
    let keyTaken = false
    const recorder = {
      async mark(trx: Trx, target: string) {
        // The first act of the transaction names the created object; later acts belong to it.
        if (marked) return
        await idempotency!.mark(trx, account_id, key!, fingerprint(route, request, caller), target).catch((error) => {
          keyTaken = error instanceof KeyTaken
          throw error
        })
        marked = true
      },
    }
    try {
      const answer = await create({ ...caller, idempotency: recorder })
      await idempotency!
        .storeAnswer(account_id, key!, JSON.stringify(answer))
        .catch((error) => request.log.warn({ err: error }, 'an answer could not be stored for its Idempotency-Key'))
      return answer
    } catch (error) {
      // The object may exist despite the error, created here or by another process.
      const created = await idempotency!.find(account_id, key!).catch(() => undefined)
      if (!created) throw error
      if (!marked) {
        const current = fingerprint(route, request, caller)
        if (keyTaken || created.fingerprint === current) return await replay(created, current)
        throw error
      }
      const answer = await recover(created.target).catch(() => {
        throw error
      })
      if (answer) return answer
      // Only a request that the service refused and rolled back may be retried under the same key.
      if (error instanceof ApiError && error.status < 500) await idempotency!.forget(account_id, key!)
      throw error
    }
  }

  async function replay(creation: Creation, currentFingerprint: string): Promise<object> {
    if (creation.fingerprint !== currentFingerprint)
      throw new ApiError(
        'idempotency_key_reused',
        'This Idempotency-Key came before with another request. Take a new key for each thing that you create.',
      )
    const answer = await answerOf(creation)
    if (!answer)
      throw new ApiError(
        'idempotency_key_reused',
        `The first request with this Idempotency-Key created '${creation.target}', but its answer was lost and ` +
          'cannot be made again. Look at what it created, or take a new key.',
        { details: { created: creation.target } },
      )
    reply.header('idempotent-replayed', 'true')
    return answer
  }

  async function answerOf(creation: Creation): Promise<object | undefined> {
    if (creation.answer !== undefined) return JSON.parse(creation.answer) as object
    const recovered = await recover(creation.target)
    if (recovered || Date.now() - creation.created_at > answerLost_ms) return recovered
    for (let waited = 0; waited < answerWait_ms; waited += answerPoll_ms) {
      await sleep(answerPoll_ms)
      const { answer } = (await idempotency!.find(account_id, key!)) ?? {}
      if (answer !== undefined) return JSON.parse(answer) as object
    }
    return undefined
  }

  /**
   * Builds the answer from the object's current state. Undefined if the object is gone or must not be read, or if it
   * does not match the response schema, as for objects with a secret that is shown only once. Calls the handler of the
   * item's route directly: a separate request would count against the caller's limits, and be refused at them.
   */
  async function recover(target: string): Promise<object | undefined> {
    const body = request.body as { name?: string } | undefined
    const reader = request.server.itemReaders?.get(route.path.replace(/\/$/, ''))
    if (!reader) return undefined
    const item = reader.parameter === 'name' ? body!.name! : target
    try {
      requirePermission(caller, reader.route)
      const schema = Object.values(route.responses)[0]!
      const result = z.safeParse(schema, await reader.read(item, caller, request, reply))
      return result.success ? (result.data as object) : undefined
    } catch (error) {
      if (error instanceof ApiError && error.status < 500) return undefined
      throw error
    }
  }
}

function keyIn({ headers }: FastifyRequest): string | undefined {
  const key = headers['idempotency-key']
  if (key === undefined) return undefined
  if (typeof key === 'string' && /^[\x21-\x7e]{1,255}$/.test(key)) return key
  throw new ApiError(
    'invalid_request',
    'The Idempotency-Key must be 1 to 255 visible characters of ASCII, such as a UUID.',
    { details: { field: 'Idempotency-Key' } },
  )
}

/**
 * Fingerprint of a request: route, parameters and body (of a form, its content without the boundaries), and the API
 * key, as the answer may hold a secret that other keys must not see.
 */
const fingerprint = ({ method, path }: Route, { params, bodyText, formDigest }: FastifyRequest, { key_id }: Caller) =>
  createHash('sha256')
    .update(JSON.stringify([key_id, method, path, params, formDigest ? formDigest() : bodyText]))
    .digest('hex')

async function fingerprintNow(route: Route, request: FastifyRequest, caller: Caller): Promise<string> {
  if (route.consumes) {
    const digest = await digestMultipart(request)
    request.formDigest = () => digest
  }
  return fingerprint(route, request, caller)
}
