import type { z } from 'zod'
import { ApiError } from '../../../contract/errors.ts'
import type { AnswerWarning, ModelCard, ModelList } from '../../../contract/inference.ts'
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
import { createResolver, type ModelAliases, type Resolved, type Resolver } from './resolve.ts'
import { answerWarnings, askedAsTrained } from './warnings.ts'

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
  /** Called before the model is asked, which may take minutes, if the request differs from its training. */
  warn?(warnings: AnswerWarning[]): void
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

export class Inference {
  private readonly options: Options
  /** Usage lookups still pending for disconnected clients. */
  private readonly pendingUsage = new Set<Promise<void>>()
  /** By the deployment that has its own engines; '' for this machine's. */
  private readonly isolations = new Map<string, Isolation>()
  private readonly resolver: Resolver
  private readonly journal: Pick<Usage, 'record'>

  constructor(options: Options) {
    this.options = options
    const { hub, models, pools, mergedAdapters, usage, changes, aliases } = options
    this.resolver = createResolver({ hub, models, pools, changes, aliases })
    this.journal = {
      record: (record) => {
        usage.record(record)
        mergedAdapters.recordUsage(record)
      },
    }
  }

  /**
   * The target of a model id, ignoring deployments. Throws model_not_found, model_not_available or model_not_callable.
   */
  target(account_id: string, model: string): Promise<Target> {
    return this.resolver.target(account_id, model)
  }

  /** Whether this is the id of a base model in the hub or on an upstream. */
  isBase(id: string): boolean {
    return this.resolver.isBase(id)
  }

  /** Call it after a deployment changes, and answer the change after it: the next request sees it. */
  aliasesChanged(account_id: string): Promise<void> {
    return this.options.changes.announce(account_id)
  }

  /**
   * Keeps apart what may end the engine that serves a model; undefined if upstreams serve it. Throws what `target`
   * throws.
   */
  async isolation(account_id: string, name: string): Promise<Isolation | undefined> {
    const { pools } = this.options
    const { target, deployment_id } = await this.resolver.resolve(account_id, name)
    if (pools.hasUpstream(target.base.id)) return undefined
    const engine = (deployment_id !== undefined && this.replicaSet(deployment_id) && deployment_id) || ''
    const existing = this.isolations.get(engine)
    if (existing) return existing
    const created = createIsolation()
    this.isolations.set(engine, created)
    return created
  }

  /** Whether the model that a name stands for now reads pictures; undefined if only its server knows. */
  async readsPictures(account_id: string, name: string): Promise<boolean | undefined> {
    const { pools } = this.options
    const { target } = await this.resolver.resolve(account_id, name)
    return pools.hasUpstream(target.base.id) ? undefined : projectorOf(target) !== null
  }

  /** The id of the model that a name stands for now. Throws what `target` throws. */
  async modelId(account_id: string, name: string): Promise<string> {
    return (await this.resolver.resolve(account_id, name)).model_id
  }

  /** Prices of the model that a name stands for now, per million tokens. Throws what `target` throws. */
  async pricesOf(account_id: string, name: string): Promise<ReturnType<Plans['pricing']>> {
    return this.options.pricing((await this.resolver.resolve(account_id, name)).base_model_id)
  }

  /** Whether only upstreams answer for what a name stands for now; false for a name that stands for nothing. */
  async isElsewhere(account_id: string, name: string): Promise<boolean> {
    const { pools } = this.options
    try {
      const { target, deployment_id } = await this.resolver.resolve(account_id, name)
      return pools.isElsewhere(target) && (deployment_id === undefined || !this.replicaSet(deployment_id))
    } catch (error) {
      if (error instanceof ApiError) return false
      throw error
    }
  }

  /** The base that a model was tuned from, whether or not its weights are on this machine. */
  async baseId(account_id: string, model: string): Promise<string> {
    const { models } = this.options
    return (await models.find(account_id, model))?.base_model_id ?? model
  }

  /**
   * Loads a model ahead of its first request: into the replicas of the deployment if it has its own, which verify it
   * first.
   */
  async load(target: Target, deployment_id?: string): Promise<void> {
    const { pools } = this.options
    const set = deployment_id === undefined ? undefined : this.replicaSet(deployment_id)
    await (set ? set.prepare(target) : pools.load(target))
  }

  /** The replicas of a deployment that has its own. */
  replicaSet(deployment_id: string): ServingSet | undefined {
    return this.options.servingSets.get(deployment_id)
  }

  /** Waits for pending usage lookups, so call it while the engine still runs. */
  async close(): Promise<void> {
    const { mergedAdapters } = this.options
    await mergedAdapters.close()
    await Promise.allSettled(this.pendingUsage)
  }

  /** Compares the served model with its training. Throws model_disagrees if they differ. */
  async requireVerified(account_id: string, model: string): Promise<void> {
    const { models } = this.options
    if (!(await models.find(account_id, model))) return
    const comparison = await models.getComparison(account_id, model)
    if (comparison?.problem)
      throw new ApiError('model_disagrees', `'${model}' is not deployed. ${comparison.problem}`, {
        details: { ...comparison },
        param: 'model',
      })
  }

  /**
   * Runs a request; resolves with the full response or with the start of its stream. The caller must release the
   * response and end the meter. Throws an ApiError.
   */
  async answer(
    { kind, path }: Operation,
    request: InferenceRequest,
    signal: AbortSignal,
  ): Promise<{ response: PoolResponse; meter: Meter }> {
    const { engine, pools, mergedAdapters, pricing, metrics, pictureFetcher } = this.options
    const { caller, request_id, stream, background = false, prompt_tokens_max, span } = request
    const { account_id, key_id } = caller
    const { model } = request.body
    const { model_id, base_model_id, target, deployment_id, trained } = await this.resolve(account_id, model, span)
    const warnings = answerWarnings(trained, kind, request.body)
    if (warnings.length > 0) request.warn?.(warnings)
    const set = deployment_id === undefined ? undefined : this.replicaSet(deployment_id)
    const upstream = pools.hasUpstream(target.base.id)
    let { body, text } = request
    if (kind === 'chat') {
      body = askedAsTrained(trained, body)
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
      this.journal,
      { request_id, account_id, key_id, model, model_id, kind },
      pricing(base_model_id),
      this.pendingUsage,
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
  }

  async models(account_id: string): Promise<z.input<typeof ModelList>> {
    return { object: 'list', data: await this.cards(account_id) }
  }

  async model(account_id: string, name: string): Promise<z.input<typeof ModelCard>> {
    const card = (await this.cards(account_id)).find(({ id }) => id === name)
    if (!card)
      throw new ApiError(
        'model_not_found',
        `There is no model or deployment '${name}'. GET /v1/models lists what you can call.`,
        { param: 'model' },
      )
    return card
  }

  private async cards(account_id: string): Promise<z.input<typeof ModelCard>[]> {
    const { hub, models, pools, mergedAdapters, aliases } = this.options
    const tuned = await models.all(account_id)
    const targets = new Map(tuned.map((model) => [model.id, model]))
    const statusOf = (id: string) => {
      const tunedModel = targets.get(id)
      try {
        return pools.status(
          tunedModel
            ? (mergedAdapters.servingTarget(id) ?? this.resolver.targetOf(tunedModel))
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
        const replicas = this.replicaSet(id)?.replicas()
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

  private async resolve(account_id: string, model: string, span: Span | null | undefined): Promise<Resolved> {
    if (!span) return await this.resolver.resolve(account_id, model)
    const resolving = span.child('resolve model')
    try {
      const resolved = await this.resolver.resolve(account_id, model)
      span.set({ 'gen_ai.request.model': model, 'tunery.base_model': resolved.base_model_id })
      resolving.end()
      return resolved
    } catch (error) {
      resolving.end({ error })
      throw error
    }
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
