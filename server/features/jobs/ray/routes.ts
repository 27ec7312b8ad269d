// Routes for runs in the cluster alone, below /internal: a token for each run, no key, no account. They belong to no
// API version, as a run has the code of the service that started it.

import { createReadStream } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { newId } from '../../../../lib/ids.ts'
import type { Db } from '../../../platform/db/open.ts'
import { bearerToken } from '../../../platform/http/auth.ts'
import { claimDisk, storeStream } from '../../../platform/storage/incoming-files.ts'
import { type Secrets, sameSecret } from '../../../platform/storage/secrets.ts'
import { runDir } from '../../../platform/trainer/run-folder.ts'
import * as store from '../store.ts'
import type { RunInputs } from './inputs.ts'
import { type RunFiles, receivedKey } from './received.ts'
import * as runs from './runs.ts'

/** A batch has at most 500 lines; the numbers of held-out rows may be long. */
const linesBodyLimit = 64 * 1024 * 1024
/** Heartbeats are stored no more often. */
const seenEvery_ms = 5000
const describedRuns_max = 32

const Lines = z
  .object({
    first: z.int().min(0),
    lines: z
      .array(
        z.object({
          type: z.string().max(100),
          message: z.string(),
          data: z.record(z.string(), z.unknown()).optional(),
        }),
      )
      .max(1000),
  })
  .refine(({ first, lines }) => first > 0 || lines.length === 0, 'Lines are numbered from 1.')

/** What a run may store: checkpoints, results and its log. No segment begins with a dot. */
const uploadPath = /^(trainer\.log|checkpoints\/step-\d+\/\w[\w.-]*|out(\/\w[\w.-]*)+)$/

interface Needs {
  db: Db
  files: RunFiles
  now(): number
  secrets: Secrets
  min_free_mb: number
  describe(job: store.JobRow, run: runs.Run): Promise<RunInputs>
  /** Wakes the worker of a job whose run has reported. */
  notify(job_id: string): void
}

export const tokenContext = (job_id: string, attempt: number) => `training run ${job_id} ${attempt}`

const runEnded = 'This run has ended: its job has, or another run has taken over.'
const endedStatus = new Set(['completed', 'failed', 'cancelled'])

type Params = { job: string; attempt: string; '*'?: string }

export function runRoutes(
  app: FastifyInstance,
  { db, files, now, secrets, min_free_mb, describe, notify }: Needs,
): void {
  const { dataDir } = files
  const described = new Map<string, Promise<RunInputs>>()

  /** The run and job of requests that are let in. */
  const authenticated = new WeakMap<FastifyRequest, { run: runs.Run; job: store.JobRow }>()

  /** Refuses a request whose token is not that of the run in its address. */
  async function authenticate(request: FastifyRequest, reply: FastifyReply) {
    const { job: job_id, attempt } = request.params as Params
    const token = bearerToken(request) ?? ''
    const run = /^\d{1,9}$/.test(attempt) ? await runs.find(db, job_id, Number(attempt)) : undefined
    if (!run || !sameSecret(token, secrets.decrypt(run.token_encrypted, tokenContext(job_id, run.attempt))))
      return refuse(reply, 401, 'This is not the token of a run.')
    const job = await store.findJobUnscoped(db, job_id)
    if (run.ended_at !== null || !job || endedStatus.has(job.status)) return refuse(reply, 410, runEnded)
    authenticated.set(request, { run, job })
  }

  /** What a run needs; looked up again with `fresh`, and by a process that does not know it. */
  const inputsOf = (job: store.JobRow, run: runs.Run, fresh: boolean) => {
    const key = run.submission_id
    const description = (!fresh && described.get(key)) || describe(job, run)
    described.delete(key)
    described.set(key, description)
    description.catch(() => described.delete(key))
    if (described.size > describedRuns_max) described.delete(described.keys().next().value!)
    return description
  }

  // biome-ignore lint/nursery/noMisusedPromises: Fastify waits for an asynchronous plugin
  app.register(async (scope) => {
    // Before the body is read, which may be large.
    scope.addHook('onRequest', authenticate)
    // The limits on JSON of clients do not fit: the numbers of held-out rows are a long list.
    scope.removeContentTypeParser('application/json')
    scope.addContentTypeParser('application/json', { parseAs: 'string' }, (_request, body, done) => {
      try {
        done(null, JSON.parse(body as string))
      } catch {
        done(null, undefined)
      }
    })
    // Files are streamed.
    scope.addContentTypeParser('application/octet-stream', (_request, payload, done) => done(null, payload))
    const base = '/internal/runs/:job/:attempt'

    scope.post(`${base}/lines`, { bodyLimit: linesBodyLimit }, async (request, reply) => {
      const { run, job } = authenticated.get(request)!
      const body = Lines.safeParse(request.body)
      if (!body.success) return refuse(reply, 422, z.prettifyError(body.error))
      const { first, lines } = body.data
      const time = now()
      let { received } = run
      if (lines.length > 0) {
        const last = await runs.receive(db, run, first, lines, time)
        if (last === undefined) return refuse(reply, 410, runEnded)
        received = last
      } else if (time - (run.seen_at ?? 0) >= seenEvery_ms) await runs.update(db, run, { seen_at: time })
      if (lines.length > 0 || run.seen_at === null) notify(run.job_id)
      if (first > received + 1) return refuse(reply, 409, `Line ${received + 1} is missing.`)
      return { received, stop: job.paused === 1 || run.turn_over === 1 }
    })

    scope.get(`${base}/spec`, async (request) => {
      const { run, job } = authenticated.get(request)!
      const inputs = await inputsOf(job, run, true)
      return { spec: inputs.spec, files: inputs.files }
    })

    scope.get(`${base}/files/:sha256`, async (request, reply) => {
      const { run, job } = authenticated.get(request)!
      const { sha256 } = request.params as { sha256: string }
      const inputs = await inputsOf(job, run, false)
      const source = inputs.sources.get(sha256)
      if (!source) return refuse(reply, 404, 'This run needs no such file.')
      reply.header('content-length', inputs.files.find((file) => file.sha256 === sha256)!.size_bytes)
      return reply.type('application/octet-stream').send(createReadStream(source, { highWaterMark: 1 << 20 }))
    })

    scope.put(`${base}/files/*`, { bodyLimit: Number.MAX_SAFE_INTEGER }, async (request, reply) => {
      const { run } = authenticated.get(request)!
      const { '*': name = '' } = request.params as Params
      if (!uploadPath.test(name)) return refuse(reply, 422, 'A run stores no such file.')
      const target = path.join(runDir(dataDir, run.job_id, run.attempt), name)
      const fresh = `${target}.${newId('upl')}`
      const announced = Number(request.headers['content-length'] ?? 0)
      const claim = await claimDisk(dataDir, min_free_mb, announced)
      const { sha256 } = await storeStream(request.body as NodeJS.ReadableStream, fresh, () => {}, claim).finally(
        claim.release,
      )
      if (sha256 !== request.headers['x-content-sha256']) {
        await rm(fresh)
        return refuse(reply, 503, 'The file arrived with another hash. Send it once more.')
      }
      await rename(fresh, target)
      // The worker of the job may be on another machine.
      await files.artifacts.store?.put(target, receivedKey(run, name))
      return reply.status(204).send()
    })
  })
}

function refuse(reply: FastifyReply, status: number, message: string): FastifyReply {
  // The body may be unread, so the connection cannot be used again.
  return reply.status(status).header('connection', 'close').send({ error: { message } })
}
