// The header Idempotency-Key: a creating request that is sent again creates nothing again, and gets the answer of the
// first.
import { createHash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../contract/errors.ts'
import type { Route } from '../../contract/route.ts'
import type { Trx } from '../db/open.ts'
import type { Caller } from './auth.ts'
import { digestForm } from './multipart.ts'

declare module 'fastify' {
  interface FastifyInstance {
    idempotency?: Idempotency
  }
  interface FastifyRequest {
    /** The digest of a form, when all of it has been read; asked for where its request may come again. */
    formDigest: (() => string) | null
  }
}

export interface Idempotency {
  /** What was created under a key of the account; its answer may have been lost with a crash. */
  find(
    account_id: string,
    key: string,
  ): Promise<{ fingerprint: string; target: string; answer: string | undefined } | undefined>
  /** Writes, in the transaction that creates it, what is created under a key. */
  mark(trx: Trx, account_id: string, key: string, fingerprint: string, target: string): Promise<void>
  keep(account_id: string, key: string, answer: string): Promise<void>
  forget(account_id: string, key: string): Promise<void>
}

export const createsSomething = (route: Route) => 201 in route.responses

/** Those under way in this process: who comes second waits for the first. */
const underWay = new Map<string, Promise<unknown>>()

/**
 * Runs `create` for a request with the header, once in 24 hours; `create` passes the caller that it is given to
 * `recordAct`.
 */
export async function once(
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
  while (underWay.has(name)) await underWay.get(name)
  const work = createOrReplay()
  const settled = work.catch(() => {}).finally(() => underWay.delete(name))
  underWay.set(name, settled)
  return work

  async function createOrReplay(): Promise<object> {
    const known = await idempotency!.find(account_id, key!)
    if (known) return replay(known, await fingerprintNow(route, request, caller))
    if (route.consumes) request.formDigest = () => ''
    let marked = false
    const once = {
      async mark(trx: Trx, target: string) {
        // What else is done in the same transaction belongs to it.
        if (marked) return
        marked = true
        await idempotency!.mark(trx, account_id, key!, fingerprint(route, request, caller), target)
      },
    }
    try {
      const answer = await create({ ...caller, once })
      await idempotency!
        .keep(account_id, key!, JSON.stringify(answer))
        .catch((error) => request.log.warn({ err: error }, 'an answer could not be kept for its Idempotency-Key'))
      return answer
    } catch (error) {
      // It may have been created all the same, here or by another process.
      const made = await idempotency!.find(account_id, key!).catch(() => undefined)
      if (!made) throw error
      const answer = await recover(made.target)
      if (answer) return answer
      // Only what the service itself refused, and took back, may be tried again under the same key.
      if (error instanceof ApiError && error.status < 500) await idempotency!.forget(account_id, key!)
      throw error
    }
  }

  async function replay(known: NonNullable<Awaited<ReturnType<Idempotency['find']>>>, print: string): Promise<object> {
    if (known.fingerprint !== print)
      throw new ApiError(
        'idempotency_key_reused',
        'This Idempotency-Key came before with another request. Take a new key for each thing that you create.',
      )
    const answer = known.answer === undefined ? await recover(known.target) : (JSON.parse(known.answer) as object)
    if (!answer)
      throw new ApiError(
        'idempotency_key_reused',
        `The first request with this Idempotency-Key created '${known.target}', but its answer was lost and cannot be made again. Look at what it created, or take a new key.`,
        { details: { created: known.target } },
      )
    reply.header('idempotent-replayed', 'true')
    return answer
  }

  /**
   * What was created, as it is now, where that says all that the first answer said; a secret that is shown once is
   * gone.
   */
  async function recover(target: string): Promise<object | undefined> {
    const body = request.body as { name?: string } | undefined
    const item = route.path === '/deployments' ? body!.name! : target
    const url = `${request.url.split('?')[0]!.replace(/\/$/, '')}/${encodeURIComponent(item)}`
    const { statusCode, body: text } = await request.server.inject({
      method: 'GET',
      url,
      headers: { authorization: request.headers.authorization },
    })
    if (statusCode !== 200) return undefined
    const result = route.responses[201]!.safeParse(JSON.parse(text))
    return result.success ? (result.data as object) : undefined
  }
}

function keyIn({ headers }: FastifyRequest): string | undefined {
  const key = headers['idempotency-key']
  if (key === undefined) return undefined
  if (typeof key === 'string' && /^[\x21-\x7e]{1,255}$/.test(key)) return key
  throw new ApiError(
    'invalid_request',
    'The Idempotency-Key must be 1 to 255 visible characters of ASCII, such as a UUID.',
    {
      details: { field: 'Idempotency-Key' },
    },
  )
}

/**
 * What makes two requests the same: the key that made them, as the answer may hold a secret that another may not see;
 * route, parameters, and the body, of which a form's boundaries are no part.
 */
const fingerprint = ({ method, path }: Route, { params, bodyText, formDigest }: FastifyRequest, { key_id }: Caller) =>
  createHash('sha256')
    .update(JSON.stringify([key_id, method, path, params, formDigest ? formDigest() : bodyText]))
    .digest('hex')

async function fingerprintNow(route: Route, request: FastifyRequest, caller: Caller): Promise<string> {
  if (route.consumes) {
    const digest = await digestForm(request)
    request.formDigest = () => digest
  }
  return fingerprint(route, request, caller)
}
