// Entry point of the engine: serves base models and adapters on this machine over OpenAI's protocol.
import type { Server } from 'node:http'
import pino from 'pino'
import { createFairQueue } from '../lib/fair-queue.ts'
import { createMutex } from '../lib/mutex.ts'
import { usableMemory } from '../lib/usable-memory.ts'
import pkg from '../package.json' with { type: 'json' }
import { createPictureDecoder } from '../pictures/decoder.ts'
import { createTracing, type Tracing } from '../telemetry/tracing.ts'
import { type Args, parseCommandLine, usage } from './args.ts'
import { outputsFor } from './batching/batch.ts'
import { Contexts } from './batching/contexts.ts'
import { readCoreTimes } from './batching/core-times.ts'
import { createCpuThrottle } from './batching/cpu-throttle.ts'
import { createProgressWatchdog } from './batching/progress-watchdog.ts'
import type { Backend } from './batching/runner-pool.ts'
import { Scheduler, type SchedulerCounts } from './batching/scheduler.ts'
import { createSideWork } from './batching/side-work.ts'
import type { MemoryLimits } from './batching/slot-sizes.ts'
import { createStepThreads } from './batching/step-threads.ts'
import { endAsTemplate } from './chat/template.ts'
import { createEmbedder } from './embeddings/embedder.ts'
import { createGrammars } from './grammar/grammars.ts'
import { createAbortedUsage } from './http/aborted-usage.ts'
import { keyVariable, readApiKeys } from './http/api-keys.ts'
import { createMetrics } from './http/metrics.ts'
import { scoringWaitingMax, tooManyScorings } from './http/routes/score.ts'
import { createHttpServer, type HttpServices, listen } from './http/server.ts'
import type { LogIds } from './http/trace.ts'
import { type ComputeThreads, createComputeThreads } from './llama/compute-threads.ts'
import { loadFastestFormat, openCopy } from './llama/eight-bit-weights.ts'
import { addKernels } from './llama/kernels.ts'
import { type Library, openLibrary, returnFreedBlocks } from './llama/library.ts'
import { freeModel, loadModel, useEightBitCache } from './llama/model.ts'
import { type Adapters, createAdapters, type ReadDrafts } from './models/adapters.ts'
import { type Drafts, readDrafts } from './models/draft-file.ts'
import { createEightBitsMaker } from './models/eight-bits.ts'
import { createFileHashes, type FileHashes } from './models/file-hashes.ts'
import { Models, type OpenedFile, type ServedModel } from './models/models.ts'
import { createTokenizer } from './tokenizer/tokenizer.ts'
import { createEncoder } from './vision/encoder.ts'
import { Features } from './vision/features.ts'
import { createProjectors, type Projectors } from './vision/projectors.ts'
import { removeStaleFolders } from './vllm/process.ts'
import { VllmQueue } from './vllm/queue.ts'
import { DeviceClaims } from './vllm/sleep.ts'
import { openInVllm, sleepOf, vllmLogprobs } from './vllm/vllm.ts'

const idle_close_ms = 50

const log = pino({ base: { process: 'engine' } }, pino.destination({ dest: 2, sync: true }))

try {
  await main()
} catch (error) {
  log.fatal({ usage }, (error as Error).message)
  process.exit(1)
}

async function main(): Promise<void> {
  const args = parseCommandLine(process.argv.slice(2))
  if (args.parent_pipe) exitWithParent()
  const access = 'port' in args.listen ? { keys: readApiKeys(args.api_key_file, process.env) } : null

  returnFreedBlocks()
  const library = openLibrary(args.lib)
  const kernels = args.kernels ? addKernels(library) : 'turned off'
  log.info({ kernels: kernels ?? 'own' }, 'kernels')
  const stopping = new AbortController()
  const { services, projectors } = await createServices(args, library, kernels === null, stopping.signal)
  if (args.vllm !== null) await removeStaleFolders().catch((error) => log.warn({ err: error }, 'old sockets remain'))
  await loadNamedModels(args, services.models, projectors)
  const server = createHttpServer(services, access)
  const address = await listen(server, args.listen)

  const stop = (signal: string) => {
    if (stopping.signal.aborted) return
    stopping.abort()
    log.info({ signal }, 'stopping')
    stopServing(server, services.models, services.tracing, args.grace_ms)
  }
  process.on('SIGTERM', stop)
  // Under a server, ignore SIGINT: Ctrl-C reaches the whole process group, but only the server decides what stops.
  if (!args.parent_pipe) process.on('SIGINT', stop)

  if (access && !access.keys)
    log.warn(
      `No API key is set: anyone who reaches ${address} can call the model. ` +
        `Set one with --api-key-file or ${keyVariable}.`,
    )
  const models = services.models.list().map((served) => served.name)
  log.info({ address, threads: args.threads, library: library.llama_version(), models }, 'listening')
  process.stdout.write(`${JSON.stringify({ event: 'listening', address })}\n`)
}

/** Creates what the routes need, without a model. `ownKernels`: the library computes with our kernels. */
async function createServices(
  args: Args,
  library: Library,
  ownKernels: boolean,
  stopping: AbortSignal,
): Promise<{ services: HttpServices; projectors: Projectors }> {
  const threads = createThreads(library, args.threads)
  const limits = memoryLimits(args.slots, args.cache_bytes)
  const hashes = createFileHashes()
  const draftsOf: ReadDrafts = (model, path) =>
    path === undefined || !args.speculation ? null : readUsableDrafts(path, model.vocab.size)
  const adapters = createAdapters(library, limits.runner_bytes, hashes, draftsOf)
  // Loading or freeing an adapter changes a list of the model that context creation reads on another thread.
  const nativeMutex = createMutex()
  const contexts = new Contexts(library, threads, adapters, nativeMutex)
  const cpuThrottle = createCpuThrottle()
  const watchdog = createProgressWatchdog()
  const onFault = (error: unknown, fields: { model?: string } & LogIds) => log.error({ err: error, ...fields }, 'fault')
  const scheduler = new Scheduler(backendOf(contexts, adapters, args.speculation), limits, cpuThrottle, {
    onStep(stats) {
      metrics.step(stats)
      // A step in which all sequences wait for their grammar masks is no progress.
      if (stats.seconds > 0 || stats.output_tokens > 0) watchdog.recordProgress()
    },
    onFault: (error, model) => onFault(error, { model }),
    onBusy: watchdog.beginWork,
  })
  const vllmQueue = new VllmQueue({
    onTokens(prompt_tokens, output_tokens) {
      metrics.tokens(prompt_tokens, output_tokens)
      watchdog.recordProgress()
    },
    onFault: (error, model) => onFault(error, { model }),
    onBusy: watchdog.beginWork,
  })
  const sideWork = createSideWork(() => scheduler.counts().running > 0)
  const embedder = createEmbedder(
    (served, shape) => contexts.makeAsync(served, { ...shape, embeddings: true }),
    cpuThrottle,
    watchdog,
    sideWork,
  )
  const encoder = createEncoder(library.dir)
  const projectors = createProjectors(library, encoder, args.threads, limits.runner_bytes)
  const features = new Features(encoder, createPictureDecoder(), projectors.using, limits.runner_bytes / 4, {
    onPicture: (source, seconds) => metrics.picture(source, seconds),
  })
  const onFree = async (served: ServedModel) => {
    await embedder.release(served)
    vllmQueue.release(served)
    await scheduler.release(served)
    if (served.projector && served.owns_projector) features.forget(served.projector)
  }
  const claims = new DeviceClaims()
  const { open, load } = createLoader(args, library, ownKernels, hashes, claims, stopping)
  const eightBits = createEightBitsMaker({
    library_folder: args.lib,
    min_free_bytes: args.min_free_bytes,
    replaces: !args.fixed_weights,
    models: () => models,
    open: (path) => openCopy(path, open),
    log,
  })
  const models = new Models(library, load, projectors, adapters, draftsOf, nativeMutex, onFree, eightBits.make)
  const metrics = createMetrics(
    () => withCounts(scheduler.counts(), vllmQueue.counts()),
    () => countModels(models),
    threads.latest,
    limits.total_bytes,
  )
  const tracing = await createTracing({
    service: 'tunery-engine',
    version: pkg.version,
    onSpans: metrics.spans,
    onProblem: (message) => log.warn({ reason: message }, 'spans do not reach the collector'),
  })
  const services: HttpServices = {
    models,
    claims,
    scheduler: {
      submit: (served, submissions) => (served.remote ? vllmQueue : scheduler).submit(served, submissions),
      holdBackground: () => scheduler.holdBackground(),
    },
    grammars: createGrammars(),
    embedder,
    tokenizer: createTokenizer(watchdog.recordProgress, watchdog.beginWork),
    features,
    limits,
    abortedUsage: createAbortedUsage(),
    metrics,
    createScoringContext: (served, tokens_per_sequence, outputs, batch_tokens = outputs) =>
      contexts.makeAsync(served, { sequences: 1, tokens_per_sequence, batch_tokens, outputs }),
    remoteLogprobs: vllmLogprobs,
    scoringQueue: createFairQueue({ waiting_max: scoringWaitingMax, tooMany: tooManyScorings }),
    sideWork,
    cpuThrottle,
    watchdog,
    onFault,
    tracing,
    isStopping: () => stopping.aborted,
  }
  return { services, projectors }
}

/** Threads that compute; with several, each step has as many as the other processes leave cores for. */
function createThreads(library: Library, count: number): ComputeThreads {
  const threads = createComputeThreads(library, count)
  const times = count > 1 ? readCoreTimes(threads.ids, count) : null
  if (times) threads.choose(createStepThreads(count, times))
  return threads
}

/**
 * A quarter of the memory for KV caches, an eighth for adapters, another for projectors of their own. The weights of
 * base models come on top.
 */
function memoryLimits(slots: number, cache_bytes: number | null): MemoryLimits {
  const total = cache_bytes ?? usableMemory() / 4
  return { slots, runner_bytes: Math.floor(total / 2), total_bytes: Math.floor(total) }
}

function backendOf(contexts: Contexts, adapters: Adapters, speculate: boolean): Backend {
  return {
    makeContext: (served, ...sizes) => contexts.make(served, contextSizes(...sizes)),
    makeContextAsync: (served, ...sizes) => contexts.makeAsync(served, contextSizes(...sizes)),
    passContext: (context, adapter) => contexts.pass(context, adapter),
    adapters: adapters.count,
    speculate,
  }
}

/** How files of base models are opened, and loaded in the format that computes fastest. */
function createLoader(
  args: Args,
  library: Library,
  ownKernels: boolean,
  hashes: FileHashes,
  claims: DeviceClaims,
  stopping: AbortSignal,
) {
  const openModel = async (path: string, vocab_only = false) => {
    const model = await loadModel(library, path, vocab_only)
    model.parse_control_tokens = args.parse_control_tokens
    if (ownKernels && args.eight_bit_cache && !vocab_only) useEightBitCache(library, model)
    endAsTemplate(model)
    return model
  }
  const open = async (path: string): Promise<OpenedFile> => {
    const file = hashes.of(path)
    return { model: await openModel(path), file }
  }
  const { vllm: python, vllm_options, vllm_sleep, cache_bytes } = args
  const openElsewhere = async (path: string, checkpoint: string | undefined) =>
    python === null || checkpoint === undefined
      ? null
      : openInVllm(path, checkpoint, {
          ...{ python, options: vllm_options, sleeps: vllm_sleep, claims, stopping, cache_bytes, hashes, log },
          openVocab: (file) => openModel(file, true),
          closeVocab: (model) => freeModel(library, model),
        })
  const processor = { threads: args.threads, has_own_kernels: ownKernels }
  const load = async (path: string, keepOriginal: boolean, checkpoint: string | undefined) => {
    const elsewhere = await openElsewhere(path, checkpoint)
    if (typeof elsewhere === 'object' && elsewhere) return { ...elsewhere, gains: false }
    const problem = elsewhere
    if (keepOriginal || !args.eight_bits) return { ...(await open(path)), problem, gains: false }
    const { opened, gains } = await loadFastestFormat(library, path, processor, args.min_free_bytes, open)
    return { ...opened, problem, gains }
  }
  return { open, load }
}

/** What this process computes, and what vLLM does. */
const withCounts = (own: SchedulerCounts, remote: Pick<SchedulerCounts, 'running' | 'waiting'>): SchedulerCounts => ({
  ...own,
  running: own.running + remote.running,
  waiting: own.waiting + remote.waiting,
})

function countModels(models: Models): { bases: number; adapters: number; asleep: number } {
  const served = models.list()
  const bases = served.filter(({ base_name }) => base_name === null)
  const asleep = bases.filter((base) => sleepOf(base)?.asleep_for).length
  return { bases: bases.length, adapters: served.length - bases.length, asleep }
}

/** Exits when standard input closes, so that no engine outlives its server, even one that is killed. */
function exitWithParent(): void {
  const exit = () => process.exit(0)
  process.stdin.on('end', exit).on('close', exit).on('error', exit).resume()
}

function contextSizes(sequences: number, tokens_per_sequence: number, batch_tokens: number) {
  return { sequences, tokens_per_sequence, batch_tokens, outputs: outputsFor(sequences) }
}

/** The drafts of a file; null if it cannot be used, which only leaves out its speed. */
function readUsableDrafts(path: string, vocabSize: number): Drafts | null {
  try {
    return readDrafts(path, vocabSize)
  } catch (error) {
    log.warn({ path, reason: (error as Error).message }, 'a draft file is ignored')
    return null
  }
}

/** Loads the models that the command line names. */
async function loadNamedModels(args: Args, models: Models, projectors: Projectors): Promise<void> {
  const { projector, adapter_projectors } = args
  if ((projector !== undefined || adapter_projectors.size > 0) && !projectors.isInstalled())
    throw new Error(
      'A projector needs the library for pictures. Run `npm run setup -- --with vision`, which needs g++.',
    )
  for (const { name, path } of args.models)
    await models.loadBase(name, path, projector === undefined ? {} : { projector })
  for (const { name, path } of args.adapters)
    await models.loadAdapter(name, path, args.models[0]!.name, { projector: adapter_projectors.get(name) })
}

/** Takes no more requests, and exits when the running ones have ended, or after `grace_ms`. */
function stopServing(server: Server, models: Models, tracing: Tracing | undefined, grace_ms: number): void {
  const exit = () => void (tracing?.close() ?? Promise.resolve()).then(() => process.exit(0))
  server.close(exit)
  // A connection whose response has just ended stays open until it is closed here.
  setInterval(() => server.closeIdleConnections(), idle_close_ms)
  // Streams that outlast the grace period end with an error event.
  setTimeout(() => {
    for (const served of models.list()) served.closing.abort()
    setImmediate(exit)
  }, grace_ms)
}
