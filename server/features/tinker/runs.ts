// Training runs: adapters that clients train step by step. Each request of a run is worked on in its turn, by the
// trainer of its base.
import { randomInt } from 'node:crypto'
import path from 'node:path'
import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db } from '../../platform/db/open.ts'
import { requireFreeDisk } from '../../platform/storage/free-disk.ts'
import type { StorageQuota } from '../../platform/storage/quota.ts'
import type { Bases } from './bases.ts'
import type { Checkpoints } from './checkpoints.ts'
import type { FutureResult, Futures, QueueState, Requester } from './futures.ts'
import { otherOptimizer, trainingOutput, trainingWork } from './losses.ts'
import { runIdOf } from './names.ts'
import type { RunUsage } from './run-usage.ts'
import { Sequence } from './sequence.ts'
import type { Sessions } from './sessions.ts'
import { waitForSlot } from './slots.ts'
import * as store from './store.ts'
import { addGradients, loraOf, lostHint, type TrainedRun, type Trainers, type Work } from './trainers.ts'
import type { TrainingRequest } from './wire/messages.ts'
import type { AdamParams, CreateModel, LoadWeights } from './wire/requests.ts'

/** Runs of an account that have not ended; and the largest rank of an adapter. */
const openMax = 128
const rankMax = 256

type Call = Parameters<Work<unknown>['restore']>[0]

/** What the work on a request has at hand. */
interface Step {
  row: store.RunRow
  run: TrainedRun
  handle: { signal: AbortSignal; waits(queue: QueueState): void }
}

interface Options {
  db: Db
  dataDir: string
  min_free_mb: number
  futures: Futures
  sessions: Sessions
  bases: Bases
  trainers: Trainers
  checkpoints: Checkpoints
  usage: RunUsage
  quota: Pick<StorageQuota, 'require'>
  /** Takes one of the account's slots; undefined if none is free. */
  acquireSlot(account_id: string): Promise<(() => void) | undefined>
  log: Logger
  now(): number
}

export class Runs {
  private readonly options: Options
  private readonly sequences = new Map<string, Sequence>()

  constructor(options: Options) {
    this.options = options
  }

  /** Begins a run with a fresh adapter. Returns the id of the request. */
  async create(caller: Requester, body: CreateModel): Promise<{ request_id: string; model_id: string }> {
    const { bases, futures } = this.options
    const session = await this.options.sessions.require(caller.account_id, body.session_id)
    const model_id = runIdOf(session.id, body.model_seq_id)
    const request_id = `${model_id}:create`
    const { rank, seed, train_attn, train_mlp } = body.lora_config
    if (rank > rankMax)
      throw new ApiError('invalid_request', `The rank of an adapter may be at most ${rankMax}; ${rank} is asked for.`)
    const base_model_id = bases.resolve(body.base_model)
    bases.targetModules(base_model_id, { train_attn, train_mlp })
    await this.insert(caller, {
      id: model_id,
      session_id: session.id,
      base_model_id,
      model_name: body.base_model,
      lora: { rank, seed: seed ?? randomInt(2 ** 31), train_attn, train_mlp },
      user_metadata: body.user_metadata ?? {},
      next_seq: 1,
    })
    const created: FutureResult = { kind: 'json', fields: { type: 'create_model', model_id } }
    // The trainer makes the adapter now, so that a base that cannot be loaded is told.
    futures.begin(
      caller.account_id,
      request_id,
      (handle) =>
        this.work(caller.account_id, model_id, handle, async ({ run, row }, use) => {
          await use({ restore: (call) => this.restore(row, call), run: async () => {} })
          this.options.log.info({ run: run.id, base_model_id }, 'a training run of a client began')
          return created
        }),
      { watch: caller.watch },
    )
    return { request_id, model_id }
  }

  /** Begins a run with the weights of a checkpoint, or loads them into one. Returns the id of the request. */
  async load(by: Requester, body: LoadWeights): Promise<{ request_id: string; model_id: string }> {
    const { checkpoints, sessions } = this.options
    const { account_id } = by
    const checkpoint = await checkpoints.requireTraining(account_id, body.path)
    if (body.optimizer_config && body.optimizer_config.type !== 'adamw')
      throw otherOptimizer(body.optimizer_config.type)
    if (body.model_id !== undefined) {
      const row = await this.require(account_id, body.model_id)
      const { rank } = fromJson(row.lora_json)
      if (row.base_model_id !== checkpoint.base_model_id || rank !== checkpoint.lora.rank)
        throw new ApiError(
          'invalid_request',
          `The checkpoint is of ${checkpoint.base_model_id} with rank ${checkpoint.lora.rank}, and this run of ` +
            `${row.base_model_id} with rank ${rank}. Create a training client from the checkpoint instead.`,
        )
      return this.submit(by, body.model_id, body.seq_id, (step, use) =>
        this.loadInto(step, use, checkpoint.folder, checkpoint.sha256, body),
      )
    }
    if (body.session_id === undefined || body.model_seq_id === undefined)
      throw new ApiError(
        'invalid_request',
        "Say which run to load into: 'model_id', or 'session_id' and 'model_seq_id'.",
      )
    const session = await sessions.require(account_id, body.session_id)
    if (body.base_model && this.options.bases.resolve(body.base_model) !== checkpoint.base_model_id)
      throw new ApiError('invalid_request', `The checkpoint is of ${checkpoint.base_model_id}, not ${body.base_model}.`)
    const model_id = runIdOf(session.id, body.model_seq_id)
    await this.insert(by, {
      id: model_id,
      session_id: session.id,
      base_model_id: checkpoint.base_model_id,
      model_name: checkpoint.model_name,
      lora: checkpoint.lora,
      user_metadata: body.user_metadata ?? {},
      next_seq: 0,
    })
    return this.submit(by, model_id, 0, (step, use) =>
      this.loadInto(step, use, checkpoint.folder, checkpoint.sha256, body),
    )
  }

  /** Computes log-probabilities, and gradients unless the request is for the former alone. */
  async train(
    by: Requester,
    request: TrainingRequest,
    bytes: number,
  ): Promise<{ request_id: string; model_id: string }> {
    const work = trainingWork(request)
    const compute = async (step: Step, use: <T>(work: Work<T>) => Promise<T>): Promise<FutureResult> => {
      const answer = await use({
        restore: (call) => this.restore(step.row, call),
        run: async (call, adapter) => {
          const fields = { adapter: step.run.id, ...work.fields }
          return work.command === 'forward' ? await call('forward', fields) : await addGradients(call, adapter, fields)
        },
      })
      await this.options.usage.count(step.row.id, { trained_tokens: work.tokens })
      return { kind: 'message', bytes: trainingOutput(work, request, answer) }
    }
    return this.submit(by, request.model_id, request.seq_id, compute, bytes)
  }

  async optimStep(
    by: Requester,
    model_id: string,
    seq_id: number | undefined,
    params: AdamParams,
  ): Promise<{ request_id: string; model_id: string }> {
    const { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = params
    return this.submit(by, model_id, seq_id, async (step, use) => {
      const { grad_norm } = await use({
        restore: (call) => this.restore(step.row, call),
        run: async (call, adapter) => {
          if (!adapter.gradients)
            throw new ApiError('invalid_request', 'There are no gradients to take a step with: call forward_backward.')
          adapter.gradients = false
          return await call('optim_step', {
            adapter: step.run.id,
            learning_rate,
            betas: [beta1, beta2],
            eps,
            weight_decay,
            ...(grad_clip_norm > 0 && { max_grad_norm: grad_clip_norm }),
          })
        },
      })
      await this.options.usage.count(step.row.id, { step: 1 })
      return { kind: 'json', fields: { metrics: { grad_norm: Number(grad_norm) } } }
    })
  }

  /**
   * Work on the files of a run, in its turn. `use` gives the trainer's commands to `work` with the run's adapter in its
   * memory.
   */
  async files(
    by: Requester,
    model_id: string,
    seq_id: number | undefined,
    work: (step: Step, use: <T>(run: (call: Call) => Promise<T>) => Promise<T>) => Promise<FutureResult>,
  ): Promise<{ request_id: string; model_id: string }> {
    return this.submit(by, model_id, seq_id, (step, use) =>
      work(step, (run) => use({ restore: (call) => this.restore(step.row, call), run })),
    )
  }

  async require(account_id: string, id: string): Promise<store.RunRow> {
    const row = await store.findRun(this.options.db, account_id, id)
    if (!row) throw new ApiError('not_found', `There is no training run '${id.slice(0, 200)}'.`)
    return row
  }

  /** Saves a run before the trainer forgets it. */
  async save({ id }: TrainedRun, call: Call): Promise<void> {
    const { db } = this.options
    const row = (await store.findRunUnscoped(db, id))!
    if (row.state !== 'ended') {
      await requireFreeDisk(this.options.dataDir, this.options.min_free_mb)
      const { sha256, size_mb } = await call('save_state', { adapter: id, path: this.stateFolder(row) })
      const size_bytes = Math.round(Number(size_mb) * 1e6)
      await store.updateRun(db, id, { state: 'saved', state_sha256: String(sha256), size_bytes })
    }
    await this.options.usage.meter(id)
  }

  /** The trainer of these runs ended. */
  async markLost(runs: readonly Pick<TrainedRun, 'id'>[], why: string): Promise<void> {
    for (const { id } of runs) {
      await store.updateRun(this.options.db, id, { state: 'lost', problem: `The trainer of this run ${why}.` })
      await this.options.usage.meter(id)
    }
  }

  /** Ends the runs of a session: nothing more is computed. */
  async end(session_id: string): Promise<void> {
    const { db, trainers } = this.options
    for (const row of await store.runsOfSession(db, session_id)) {
      await store.updateRun(db, row.id, { state: 'ended', size_bytes: 0 })
      this.sequences.delete(row.id)
      await trainers.drop(trainedRun(row))
      await this.options.usage.meter(row.id)
    }
  }

  private async submit(
    by: Requester,
    model_id: string,
    seq_id: number | undefined,
    work: (step: Step, use: <T>(work: Work<T>) => Promise<T>) => Promise<FutureResult>,
    bytes = 0,
  ): Promise<{ request_id: string; model_id: string }> {
    const { futures, db, now } = this.options
    const { account_id, watch } = by
    const row = await this.require(account_id, model_id)
    await this.options.sessions.require(account_id, row.session_id)
    if (seq_id === undefined)
      throw new ApiError('invalid_request', "'seq_id' is missing: the number of the request among those of its run.")
    const sequence = this.sequences.get(model_id) ?? new Sequence(row.next_seq)
    this.sequences.set(model_id, sequence)
    const request_id = `${model_id}:${seq_id}`
    if (!futures.has(account_id, request_id)) {
      sequence.require(seq_id)
      const done = async (next_seq: number) =>
        void (await store.updateRun(db, model_id, { next_seq, last_request_at: now() }))
      futures.begin(
        account_id,
        request_id,
        (handle) => sequence.run(seq_id, () => this.work(account_id, model_id, handle, work), done, handle.signal),
        { bytes, watch },
      )
    }
    return { request_id, model_id }
  }

  /** Works on one request with one of the account's slots, once there is one. */
  private async work(
    account_id: string,
    model_id: string,
    handle: Step['handle'],
    work: (step: Step, use: <T>(work: Work<T>) => Promise<T>) => Promise<FutureResult>,
  ): Promise<FutureResult> {
    const { acquireSlot, trainers } = this.options
    const release = await waitForSlot(acquireSlot, account_id, handle)
    try {
      const row = await this.require(account_id, model_id)
      if (row.state === 'ended') throw new ApiError('invalid_request', 'This training run has ended.')
      if (row.state === 'lost') throw new ApiError('invalid_request', `${row.problem} ${lostHint}`)
      const run = trainedRun(row)
      return await work({ row, run, handle }, (steps) => trainers.use(run, steps, handle))
    } finally {
      release()
    }
  }

  /** Brings a run into the trainer's memory: what was saved of it, or a fresh adapter. */
  private async restore(stale: store.RunRow, call: Call): Promise<void> {
    const { db, bases } = this.options
    const row = (await store.findRunUnscoped(db, stale.id))!
    const { rank, seed, ...parts } = fromJson(row.lora_json)
    if (row.state_sha256 !== null) {
      const { fields } = await call('load_state', {
        adapter: row.id,
        path: this.stateFolder(row),
        sha256: row.state_sha256,
      })
      if (fields === null) {
        await this.markLost([row], 'saved it, and the files are damaged or gone')
        throw new ApiError('invalid_request', `The saved state of this run is damaged or gone. ${lostHint}`)
      }
    } else {
      const target_modules = bases.targetModules(row.base_model_id, parts)
      await call('create', { adapter: row.id, lora: loraOf(rank, target_modules), seed })
    }
    await store.updateRun(db, row.id, { state: 'live' })
  }

  private async loadInto(
    { row, run }: Step,
    use: <T>(work: Work<T>) => Promise<T>,
    folder: string,
    sha256: string,
    { path: from, optimizer }: LoadWeights,
  ): Promise<FutureResult> {
    const load = async (call: Call) => {
      const { fields } = await call('load_state', { adapter: row.id, path: folder, sha256, optimizer })
      if (fields === null) throw new ApiError('invalid_request', `The files of ${from} are damaged or gone.`)
      await store.updateRun(this.options.db, row.id, { state: 'live' })
    }
    let isLoaded = false
    await use({
      restore: async (call) => {
        await load(call)
        isLoaded = true
      },
      run: async (call, adapter) => {
        if (!isLoaded) await load(call)
        adapter.gradients = false
      },
    })
    return { kind: 'json', fields: { type: 'load_weights', path: from, model_id: run.id } }
  }

  private async insert(
    { account_id, key_id }: Requester,
    run: {
      id: string
      session_id: string
      base_model_id: string
      model_name: string
      lora: { rank: number; seed: number; train_attn: boolean; train_mlp: boolean }
      user_metadata: Record<string, string>
      next_seq: number
    },
  ): Promise<void> {
    const { db, quota, now } = this.options
    const { lora, user_metadata, ...fields } = run
    const time = now()
    await db.transaction().execute(async (trx) => {
      // The same request once more.
      if (await store.findRun(trx, account_id, run.id)) return
      await quota.require(trx, account_id, 0)
      if ((await store.countOpenRuns(trx, account_id)) >= openMax)
        throw new ApiError(
          'too_many',
          `${openMax} training runs of this account have not ended. Close sessions that you no longer need.`,
        )
      await store.insertRun(trx, {
        ...fields,
        account_id,
        key_id,
        lora_json: JSON.stringify(lora),
        user_metadata_json: JSON.stringify(user_metadata),
        // Until its trainer has it, a start begins with the fresh adapter again.
        state: 'saved',
        state_sha256: null,
        problem: null,
        step: 0,
        trained_tokens: 0,
        metered: 0,
        created_at: time,
        last_request_at: time,
      })
    })
  }

  private stateFolder(row: Pick<store.RunRow, 'id' | 'session_id'>): string {
    return path.join(this.options.dataDir, runFolder(row), 'state')
  }
}

/** The folder of a run in the data folder. */
export const runFolder = ({ id, session_id }: Pick<store.RunRow, 'id' | 'session_id'>): string =>
  path.join('tinker', session_id, id.split(':').slice(1).join('-'))

const trainedRun = (row: store.RunRow): TrainedRun => ({
  id: row.id,
  account_id: row.account_id,
  base_model_id: row.base_model_id,
  rank: fromJson(row.lora_json).rank,
})
