// The operations of Tinker's API under /api/v1, with the paths, bodies and answers of its SDK. They are no part of the
// contract under /v1.
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import { type Route, routesOf } from '../../../contract/route.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Caller } from '../../platform/http/caller.ts'
import { answered, mount } from '../../platform/http/mount.ts'
import { watchCredential } from '../../platform/http/running-requests.ts'
import { sendFile } from '../../platform/http/send-file.ts'
import type { Downloads } from './downloads.ts'
import type { FutureResult, QueueState, Requester } from './futures.ts'
import { parseCheckpointId, parsePath } from './names.ts'
import type { Tinker } from './service.ts'
import { protoType, readTrainingRequest } from './wire/messages.ts'
import * as requests from './wire/requests.ts'

/** Largest body of a request, in bytes. The SDK divides larger data; one text may be larger than its parts. */
const bodyBytes = 32 * 1024 * 1024
/** Largest body of a request to sample, in bytes: the engine takes no larger one. */
const sampleBytes = 8 * 1024 * 1024
/** How long a request for a result waits for it. The SDK waits for 45 s. */
const poll_ms = 30_000

const Answer = z.looseObject({})
const RunId = z.object({ run_id: z.string() })
const CheckpointParams = z.object({ run_id: z.string(), segment: z.string(), name: z.string() })
const SessionParams = z.object({ session_id: z.string() })

/** For keys that train, and keys that sample. */
const both = routesOf({
  tag: 'Tinker',
  base: '/api/v1',
  key_header: true,
  scope: 'inference',
  or_scope: 'tuning:read',
} as const)
const reads = routesOf({ tag: 'Tinker', base: '/api/v1', key_header: true, scope: 'tuning:read' } as const)
const writes = routesOf({ tag: 'Tinker', base: '/api/v1', key_header: true, scope: 'tuning:write' } as const)
const asks = routesOf({ tag: 'Tinker', base: '/api/v1', key_header: true, scope: 'inference' } as const)
const open = routesOf({ tag: 'Tinker', base: '/api/v1', scope: 'public' } as const)
const json = { responses: { 200: Answer } } as const
const summary = "An operation of Tinker's API"

export function tinkerRoutes(app: FastifyInstance, tinker: Tinker, downloads: Downloads, stopping: AbortSignal): void {
  serviceRoutes(app, tinker)
  futureRoutes(app, tinker, stopping)
  trainingRoutes(app, tinker)
  samplingRoutes(app, tinker)
  runRoutes(app, tinker)
  checkpointRoutes(app, tinker, downloads)
}

function serviceRoutes(app: FastifyInstance, tinker: Tinker): void {
  const { sessions } = tinker
  mount(app, both('GET', '/get_server_capabilities', { summary, ...json }), async () => ({
    supported_models: tinker.bases.list(),
  }))
  mount(app, open('GET', '/healthz', { summary, ...json }), async () => ({ status: 'ok' }))
  const config = { summary, body: requests.ClientConfigRequest, ...json }
  mount(app, both('POST', '/client/config', config), async () => clientConfig)
  mount(app, both('POST', '/client/dynamic_config', config), async () => dynamicConfig)
  mount(app, both('POST', '/telemetry', { summary, body: Answer, ...json }), async () => ({ status: 'accepted' }))
  mount(app, both('GET', '/auth/apikey/me', { summary, ...json }), async ({ caller }) => ({
    user_urn: `urn:tunery:user:${caller.user_id}`,
    org_urn: `urn:tunery:account:${caller.account_id}`,
    email: null,
  }))
  mount(
    app,
    both('POST', '/create_session', { summary, body: requests.CreateSession, ...json }),
    async ({ caller, body }) => ({ type: 'create_session', session_id: (await sessions.create(caller, body)).id }),
  )
  mount(
    app,
    both('POST', '/session_heartbeat', { summary, body: requests.SessionId, ...json }),
    async ({ caller, body }) => {
      await sessions.require(caller.account_id, body.session_id)
      return { type: 'session_heartbeat' }
    },
  )
  mount(
    app,
    both('POST', '/sessions/{session_id}/finish', {
      summary,
      params: SessionParams,
      body: requests.FinishSession,
      ...json,
    }),
    async ({ caller, params, body }) => {
      await tinker.finishSession(caller.account_id, params.session_id, body)
      return {}
    },
  )
  mount(
    app,
    reads('GET', '/sessions', { summary, query: requests.OffsetQuery, ...json }),
    async ({ caller, query }) => ({ sessions: await tinker.sessionIds(caller.account_id, query) }),
  )
  mount(
    app,
    reads('GET', '/sessions/{session_id}', { summary, params: SessionParams, query: requests.OffsetQuery, ...json }),
    ({ caller, params }) => tinker.session(caller.account_id, params.session_id),
  )
}

/** Flags of the SDK. Requests of a run are sent one after the other, and each result is polled for by itself. */
const clientConfig = {
  pjwt_auth_enabled: false,
  credential_default_source: 'api_key',
  parallel_fwdbwd_chunks: false,
  proto_compress_fwdbwd: false,
  fwdbwd_max_chunk_len: 1024,
  fwdbwd_max_chunk_bytes_count: 5_000_000,
  sample_max_concurrent_requests: 256,
  // It speaks HTTP/2 or HTTP/1.1 as the server does.
  use_pyqwest_transport: false,
  sample_use_retrieve_futures: false,
  custom_loss_server_side: false,
  sample_join_sampling_session: true,
}
const dynamicConfig = { refresh_interval_sec: 300, sample_cancel_enabled: true, sample_cancel_max_batch_size: 64 }

function futureRoutes(app: FastifyInstance, { futures, samplers }: Tinker, stopping: AbortSignal): void {
  /** Aborts when nobody waits for the answer any more. */
  const waiting = (reply: FastifyReply) => {
    const left = new AbortController()
    reply.raw.once('close', () => left.abort())
    return AbortSignal.any([left.signal, stopping])
  }
  mount(
    app,
    both('POST', '/retrieve_future', {
      summary,
      body: requests.RetrieveFuture,
      ...json,
      produces: 'application/octet-stream',
    }),
    async ({ caller, body, request, reply }) => {
      const { request_id } = body
      const result = await futures.result(caller.account_id, request_id, poll_ms, waiting(reply))
      await request.recheck?.()
      await sendResult(reply, request_id, result)
      return answered
    },
  )
  mount(
    app,
    asks('POST', '/retrieve_futures', { summary, body: requests.RetrieveFutures, ...json }),
    async ({ caller, body, reply }) => {
      const { target, prev_cursor, timeout, retrieved_request_ids } = body
      await samplers.require(caller.account_id, target.sampling_session_id)
      futures.release(caller.account_id, retrieved_request_ids)
      const group = samplers.groupOf(target.sampling_session_id, target.cloned_sampler_id)
      const wait_ms = timeout == null ? poll_ms : Math.min(poll_ms, timeout * 1000)
      const done = await futures.completions(caller.account_id, group, prev_cursor, wait_ms, waiting(reply))
      return {
        completions: done.map(({ id, failed, bytes }) =>
          failed
            ? { state: 'failed', request_id: id }
            : { state: 'finished', request_id: id, response_payload_uncompressed_size: bytes },
        ),
        cursor: done.at(-1)?.place ?? prev_cursor,
      }
    },
  )
  mount(
    app,
    asks('POST', '/cancel_future', { summary, body: requests.RetrieveFuture, ...json }),
    async ({ caller, body }) => {
      futures.cancel(caller.account_id, body.request_id)
      return {}
    },
  )
}

async function sendResult(reply: FastifyReply, request_id: string, result: FutureResult | QueueState): Promise<void> {
  if ('state' in result)
    await reply.send({
      type: 'try_again',
      request_id,
      queue_state: result.state,
      queue_state_reason: result.reason ?? null,
    })
  else if (result.kind === 'message') await reply.header('content-type', protoType).send(result.bytes)
  else if (result.kind === 'json') await reply.send(result.fields)
  else await reply.send({ error: result.error, category: result.category })
}

const requester = ({ caller, request }: { caller: Caller; request: FastifyRequest }): Requester => ({
  account_id: caller.account_id,
  key_id: caller.key_id,
  watch: (end) => watchCredential(request, end),
})

function trainingRoutes(app: FastifyInstance, tinker: Tinker): void {
  const { runs } = tinker
  mount(app, writes('POST', '/create_model', { summary, body: requests.CreateModel, ...json }), (call) =>
    tinker.createModel(requester(call), call.body),
  )
  mount(app, writes('POST', '/load_weights', { summary, body: requests.LoadWeights, ...json }), (call) =>
    runs.load(requester(call), call.body),
  )
  mount(app, writes('POST', '/optim_step', { summary, body: requests.OptimStep, ...json }), (call) =>
    tinker.optimStep(requester(call), call.body),
  )
  mount(app, writes('POST', '/save_weights', { summary, body: requests.SaveWeights, ...json }), (call) =>
    tinker.saveWeights(requester(call), call.body),
  )
  mount(
    app,
    writes('POST', '/save_weights_for_sampler', { summary, body: requests.SaveWeightsForSampler, ...json }),
    (call) => tinker.saveWeightsForSampler(requester(call), call.body),
  )
  mount(
    app,
    writes('POST', '/save_weights_external', { summary, body: requests.SaveWeightsExternal, ...json }),
    (call) => tinker.saveWeightsExternal(requester(call), call.body),
  )
  mount(app, reads('POST', '/get_info', { summary, body: requests.ModelId, ...json }), ({ caller, body }) =>
    tinker.info(caller.account_id, body.model_id),
  )
  mount(
    app,
    writes('POST', '/forward_backward', { summary, body: z.unknown(), body_bytes: bodyBytes, ...json }),
    ({ caller, body, request }) => {
      if (!Buffer.isBuffer(body))
        throw new ApiError('unsupported_media_type', `Send the data as ${protoType}, as the SDK does from 0.30 on.`)
      return runs.train(requester({ caller, request }), readTrainingRequest(body), body.length)
    },
  )
}

function samplingRoutes(app: FastifyInstance, { samplers }: Tinker): void {
  mount(
    app,
    asks('POST', '/create_sampling_session', { summary, body: requests.CreateSampler, ...json }),
    async ({ caller, body }) => ({ type: 'create_sampling_session', ...(await samplers.create(caller, body)) }),
  )
  mount(
    app,
    asks('POST', '/join_sampling_session', { summary, body: requests.SamplerId, ...json }),
    async ({ caller, body }) => ({
      type: 'join_sampling_session',
      client_counter: await samplers.join(caller.account_id, body.sampling_session_id),
    }),
  )
  mount(
    app,
    both('GET', '/samplers/{sampler_id}', { summary, params: z.object({ sampler_id: z.string() }), ...json }),
    ({ caller, params }) => samplers.get(caller.account_id, params.sampler_id),
  )
  mount(app, asks('POST', '/asample', { summary, body: requests.Sample, body_bytes: sampleBytes, ...json }), (call) =>
    samplers.sample(requester(call), call.body),
  )
}

function runRoutes(app: FastifyInstance, tinker: Tinker): void {
  mount(app, reads('GET', '/training_runs', { summary, query: requests.OffsetQuery, ...json }), ({ caller, query }) =>
    tinker.listRuns(caller.account_id, query),
  )
  mount(
    app,
    reads('GET', '/training_runs/{run_id}', { summary, params: RunId, query: requests.OffsetQuery, ...json }),
    ({ caller, params }) => tinker.run(caller.account_id, params.run_id),
  )
  mount(
    app,
    reads('POST', '/weights_info', { summary, body: requests.TinkerPathBody, ...json }),
    async ({ caller, body }) => tinker.weightsInfo(caller.account_id, parsePath(body.tinker_path)),
  )
}

function checkpointRoutes(app: FastifyInstance, tinker: Tinker, downloads: Downloads): void {
  const { checkpoints } = tinker
  const at = '/training_runs/{run_id}/checkpoints'
  const one = `${at}/{segment}/{name}` as const
  type Params = z.infer<typeof CheckpointParams>
  const pathOf = ({ run_id, segment, name }: Params) => parseCheckpointId(run_id, `${segment}/${name}`)
  mount(app, reads('GET', at, { summary, params: RunId, ...json }), async ({ caller, params }) => {
    await tinker.runs.require(caller.account_id, params.run_id)
    return { checkpoints: await checkpoints.ofRun(params.run_id), cursor: null }
  })
  mount(
    app,
    reads('GET', '/checkpoints', { summary, query: requests.OffsetQuery, ...json }),
    ({ caller, query: { limit, offset } }) => checkpoints.list(caller.account_id, { limit, offset }),
  )
  mount(app, writes('DELETE', one, { summary, params: CheckpointParams, ...json }), async ({ caller, params }) => {
    await checkpoints.delete(caller, pathOf(params))
    return {}
  })
  for (const [method, isPublic] of [
    ['POST', true],
    ['DELETE', false],
  ] as const)
    mount(
      app,
      writes(method, `${one}/publish`, { summary, params: CheckpointParams, ...json }) as Route & typeof json,
      async ({ caller, params }) => {
        await checkpoints.publish(caller!, pathOf(params as Params), isPublic)
        return {}
      },
    )
  mount(
    app,
    writes('PUT', `${one}/ttl`, { summary, params: CheckpointParams, body: requests.CheckpointTtl, ...json }),
    async ({ caller, params, body }) => {
      await checkpoints.setTtl(caller.account_id, pathOf(params), body.ttl_seconds ?? null)
      return {}
    },
  )
  mount(
    app,
    reads('GET', `${one}/external_weights_urls`, { summary, params: CheckpointParams, ...json }),
    async ({ caller, params, request }) => {
      const { urls, expires_at } = await downloads.urls(caller.account_id, pathOf(params), originOf(request))
      return { urls, expires: isoTime(expires_at) }
    },
  )
  mount(
    app,
    open('GET', '/tinker_files/{token}/{file}', {
      summary,
      params: z.object({ token: z.string(), file: z.string() }),
      ...json,
      produces: 'application/octet-stream',
    }),
    async ({ params, request, reply }) => sendFile(await downloads.file(params.token, params.file), request, reply),
  )
}

const originOf = ({ protocol, host }: { protocol: string; host: string }) => `${protocol}://${host}`
