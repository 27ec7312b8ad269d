import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { ModelCard, ModelList } from '../../../contract/inference.ts'
import { unixSeconds } from '../../../lib/utc-day.ts'
import type { Caller } from '../../platform/http/caller.ts'
import type { PictureFetcher } from '../../platform/outbound/pictures.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Changes } from '../../platform/redis/changes.ts'
import type { ServerMetrics } from '../../platform/telemetry/metrics.ts'
import type { Span } from '../../platform/telemetry/tracing.ts'
import type { Hub } from '../hub/index.ts'
import type { TunedModels } from '../models/index.ts'
import {
  type EngineClient,
  type MergedAdapters,
  type PoolResponse,
  type Pools,
  projectorOf,
  type ReplicaRequest,
  requirePictures,
  type ServingSet,
  type Target,
  withFetchedPictures,
} from '../serving/index.ts'
import type { Usage, UsageKind } from '../usage/index.ts'
import { createIsolation, type Isolation } from './isolation.ts'
import { type Meter, type MeteredUsage, startMeter } from './meter.ts'
import { observeRequest, type RequestObserver } from './observe.ts'
import { createResolver, type ModelAliases } from './resolve.ts'

/** An inference operation and its path below the base URL. */
export interface Operation {
  kind: UsageKind
  path: string
}

export interface InferenceRequest {
  caller: Pick<Caller, 'account_id' | 'key_id'>
  request_id: string
  body: { model: string } & Record<string, unknown>
  /** The body as the client sent it; undefined if the service built it. */
  text: string | undefined
  stream: boolean
  /** Computed only while the engine has no other request. */
  background?: boolean
  /** The model's name in the answer. Default: that of the request. */
  shown_name?: string
  /** Refuses a longer prompt. Upstreams do not know it. */
  prompt_tokens_max?: number
  /** The span of the HTTP request, if it is traced. */
  span?: Span | null
}

export interface Inference {
  /**
   * Runs a request; resolves with the full response or with the start of its stream. The caller must release the
   * response and end the meter. Throws an ApiError.
   */
  answer(
    operation: Operation,
    request: InferenceRequest,
    signal: AbortSignal,
  ): Promise<{ response: PoolResponse; meter: Meter }>
  /**
   * Keeps apart what may end the engine that serves a model; undefined if upstreams serve it. Throws what `target`
   * throws.
   */
  isolation(account_id: string, name: string): Promise<Isolation | undefined>
  models(account_id: string): Promise<z.input<typeof ModelList>>
  model(account_id: string, name: string): Promise<z.input<typeof ModelCard>>
  /**
   * The target of a model id, ignoring deployments. Throws model_not_found, model_not_available or model_not_callable.
   */
  target(account_id: string, model: string): Promise<Target>
  /** Whether this is the id of a base model in the hub or on an upstream. */
  isBase(model: string): boolean
  /** The base that a model was tuned from, whether or not its weights are on this machine. */
  baseId(account_id: string, model: string): Promise<string>
  /**
   * Loads a model ahead of its first request: into the replicas of the deployment if it has its own, which verify it
   * first.
   */
  load(target: Target, deployment_id?: string): Promise<void>
  /** The replicas of a deployment that has its own. */
  replicaSet(deployment_id: string): ServingSet | undefined
  /** Compares the served model with its training. Throws model_disagrees if they differ. */
  requireVerified(account_id: string, model: string): Promise<void>
  /** The id of the model that a name stands for now. Throws what `target` throws. */
  modelId(account_id: string, name: string): Promise<string>
  /** Whether the model that a name stands for now reads pictures; undefined if only its server knows. */
  readsPictures(account_id: string, name: string): Promise<boolean | undefined>
  /** Whether only upstreams answer for what a name stands for now; false for a name that stands for nothing. */
  isElsewhere(account_id: string, name: string): Promise<boolean>
  /** Call it after a deployment changes, and answer the change after it: the next request sees it. */
  aliasesChanged(account_id: string): Promise<void>
  /** Waits for pending usage lookups, so call it while the engine still runs. */
  close(): Promise<void>
}

interface Options {
  hub: Hub
  models: TunedModels
  engine: EngineClient
  pools: Pools
  mergedAdapters: MergedAdapters
  usage: Usage
  pricing: Plans['pricing']
  metrics: ServerMetrics
  changes: Changes
  pictureFetcher: PictureFetcher
  aliases: ModelAliases
  servingSets: ReadonlyMap<string, ServingSet>
}

export function createInference({
  hub,
  models,
  engine,
  pools,
  mergedAdapters,
  usage,
  pricing,
  metrics,
  changes,
  pictureFetcher,
  aliases,
  servingSets,
}: Options): Inference {
  /** Usage lookups still pending for disconnected clients. */
  const pendingUsage = new Set<Promise<void>>()
  /** By the deployment that has its own engines; '' for this machine's. */
  const isolations = new Map<string, Isolation>()
  const resolver = createResolver({ hub, models, pools, changes, aliases })
  const replicaSet = (deployment_id: string) => servingSets.get(deployment_id)
  const journal: Pick<Usage, 'record'> = {
    record(record) {
      usage.record(record)
      mergedAdapters.recordUsage(record)
    },
  }

  async function cards(account_id: string): Promise<z.input<typeof ModelCard>[]> {
    const tuned = await models.all(account_id)
    const targets = new Map(tuned.map((model) => [model.id, model]))
    const statusOf = (id: string) => {
      const tunedModel = targets.get(id)
      try {
        return pools.status(
          tunedModel
            ? (mergedAdapters.servingTarget(id) ?? resolver.targetOf(tunedModel))
            : { base: { id, ...hub.localOrUndefined(id) } },
        )
      } catch {
        // The base's weights were removed from this machine.
        return 'not_loaded' as const
      }
    }
    const catalogue = hub.list()
    const categories = new Map(catalogue.map(({ id, category }) => [id, category]))
    const card = (id: string, model: string, created_at: number, owned_by: string, status = statusOf(model)) => ({
      id,
      object: 'model' as const,
      created: unixSeconds(created_at),
      owned_by,
      category: categories.get(targets.get(model)?.base_model_id ?? model) ?? null,
      status,
    })
    const ownerOf = (base: string) => base.split('/')[0]!
    const local = catalogue.filter((model) => model.weights.available)
    const bases = new Set([...local.map(({ id }) => id), ...pools.upstreamModels()])
    const deployed = await aliases.list(account_id)
    return [
      ...deployed.map(({ id, name, model, created_at }) => {
        const replicas = replicaSet(id)?.replicas()
        const status = replicas?.some((replica) => replica.state() === 'ready') ? 'loaded' : 'not_loaded'
        return replicas ? card(name, model, created_at, account_id, status) : card(name, model, created_at, account_id)
      }),
      ...tuned.flatMap(({ id, ft_name, created_at }) =>
        [ft_name, id].flatMap((name) => (name === null ? [] : [card(name, id, created_at, account_id)])),
      ),
      ...[...bases].map((id) => card(id, id, 0, ownerOf(id))),
      ...hub
        .mappedNames()
        .filter((name) => bases.has(hub.mapped(name)))
        .map((name) => card(name, hub.mapped(name), 0, ownerOf(hub.mapped(name)))),
    ]
  }

  async function resolve(account_id: string, model: string, span: Span | null | undefined) {
    if (!span) return await resolver.resolve(account_id, model)
    const resolving = span.child('resolve model')
    try {
      const resolved = await resolver.resolve(account_id, model)
      span.set({ 'gen_ai.request.model': model, 'tunery.base_model': resolved.base_model_id })
      resolving.end()
      return resolved
    } catch (error) {
      resolving.end({ error })
      throw error
    }
  }

  return {
    target: resolver.target,
    isBase: resolver.isBase,
    async isolation(account_id, name) {
      const { target, deployment_id } = await resolver.resolve(account_id, name)
      if (pools.hasUpstream(target.base.id)) return undefined
      const engine = (deployment_id !== undefined && replicaSet(deployment_id) && deployment_id) || ''
      const existing = isolations.get(engine)
      if (existing) return existing
      const created = createIsolation()
      isolations.set(engine, created)
      return created
    },
    async readsPictures(account_id, name) {
      const { target } = await resolver.resolve(account_id, name)
      return pools.hasUpstream(target.base.id) ? undefined : projectorOf(target) !== null
    },
    modelId: async (account_id, name) => (await resolver.resolve(account_id, name)).model_id,
    async isElsewhere(account_id, name) {
      try {
        const { target, deployment_id } = await resolver.resolve(account_id, name)
        return pools.isElsewhere(target) && (deployment_id === undefined || !replicaSet(deployment_id))
      } catch (error) {
        if (error instanceof ApiError) return false
        throw error
      }
    },
    aliasesChanged: changes.announce,
    baseId: async (account_id, model) => (await models.find(account_id, model))?.base_model_id ?? model,
    async load(target, deployment_id) {
      const set = deployment_id === undefined ? undefined : replicaSet(deployment_id)
      await (set ? set.prepare(target) : pools.load(target))
    },
    replicaSet,
    async close() {
      await mergedAdapters.close()
      await Promise.allSettled(pendingUsage)
    },

    async requireVerified(account_id, model) {
      if (!(await models.find(account_id, model))) return
      const comparison = await models.getComparison(account_id, model)
      if (comparison?.problem)
        throw new ApiError('model_disagrees', `'${model}' is not deployed. ${comparison.problem}`, {
          details: { ...comparison },
          param: 'model',
        })
    },

    async answer({ kind, path }, request, signal) {
      const { caller, request_id, stream, background = false, prompt_tokens_max, span } = request
      const { account_id, key_id } = caller
      const { model } = request.body
      const { model_id, base_model_id, target, deployment_id } = await resolve(account_id, model, span)
      const set = deployment_id === undefined ? undefined : replicaSet(deployment_id)
      const upstream = pools.hasUpstream(target.base.id)
      let { body, text } = request
      if (kind === 'chat') {
        const sees = upstream ? undefined : projectorOf(target) !== null
        const isTheirs = upstream && (!pictureFetcher.enabled || pools.fetchesPictures(target.base.id))
        const addresses = isTheirs ? 'passed' : pictureFetcher.enabled ? 'fetched' : 'refused'
        requirePictures(body, { sees, addresses })
        if (addresses === 'fetched') body = await withFetchedPictures(body, account_id, pictureFetcher, signal)
        if (body !== request.body) text = undefined
      }
      const observer = observeRequest(metrics, base_model_id, kind, background)
      const progress: ReplicaRequest['progress'] = {}
      const meter = startMeter(
        journal,
        { request_id, account_id, key_id, model, model_id, kind },
        pricing(base_model_id),
        pendingUsage,
        span ? usageInto(span, observer) : observer.ended,
      )
      try {
        const attempt = (target: Target) =>
          (set ?? pools).run(
            {
              request_id,
              account_id,
              kind,
              path,
              model: request.shown_name ?? model,
              target,
              body,
              text,
              stream,
              background,
              isolated: background && !upstream,
              prompt_tokens_max,
              span,
              progress,
            },
            signal,
          )
        // Dedicated replicas serve what they have verified, and nothing merged since.
        const response = await (set ? attempt(target) : mergedAdapters.run(account_id, target, attempt))
        observer.answered(response)
        return { response, meter }
      } catch (error) {
        observer.failed(signal.aborted ? 'client_left' : 'failed')
        // A client that disconnected before the response still used the engine.
        // A request in the background is asked again under the same id, and metered then.
        // An upstream does not tell what it did, so the prompt that it was sent counts.
        if (signal.aborted && !background) {
          const told = progress.used ? Promise.resolve(undefined) : (set ?? engine).abortedUsage(request_id)
          meter.endAborted(told, progress.used)
        }
        throw error
      }
    },

    models: async (account_id) => ({ object: 'list', data: await cards(account_id) }),

    async model(account_id, name) {
      const card = (await cards(account_id)).find(({ id }) => id === name)
      if (!card)
        throw new ApiError(
          'model_not_found',
          `There is no model or deployment '${name}'. GET /v1/models lists what you can call.`,
          { param: 'model' },
        )
      return card
    },
  }
}

/** Outside of `answer`, so that the closure, which lives as long as the stream, does not retain the request. */
const usageInto = (span: Span, observer: RequestObserver) => (usage: MeteredUsage) => {
  observer.ended(usage)
  span.set(usageAttributes(usage))
}

/** By the semantic conventions of OpenTelemetry. */
const usageAttributes = ({ prompt_tokens, completion_tokens, cached_tokens, kind, finish }: MeteredUsage) => ({
  'gen_ai.operation.name': kind === 'completion' ? 'text_completion' : kind === 'embedding' ? 'embeddings' : kind,
  'gen_ai.usage.input_tokens': prompt_tokens,
  'gen_ai.usage.output_tokens': completion_tokens,
  'tunery.cached_tokens': cached_tokens,
  'tunery.finish': finish,
})
