import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { runPeriodically } from '../../../lib/periodic.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Context, Feature } from '../feature.ts'
import type { Hub } from '../hub/index.ts'
import type { Inference } from '../inference/index.ts'
import type { Devices } from '../jobs/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { Serving } from '../serving/index.ts'
import type { Usage } from '../usage/index.ts'
import { createBases } from './bases.ts'
import { Checkpoints } from './checkpoints.ts'
import { Downloads } from './downloads.ts'
import { Futures } from './futures.ts'
import { checkpointsFolder } from './owned-files.ts'
import { tinkerRoutes } from './routes.ts'
import { RunUsage } from './run-usage.ts'
import { Runs } from './runs.ts'
import { Samplers } from './samplers.ts'
import { Tinker } from './service.ts'
import { Sessions } from './sessions.ts'
import * as store from './store.ts'
import { Trainers } from './trainers.ts'
import { protoType } from './wire/messages.ts'

/** How often silent sessions, idle trainers and expired checkpoints are looked for. */
const look_ms = 5000
/** Names of the run folders of trainers, which end with this process. */
const trainerFolder = /^trainer-/

interface Needs {
  plans: Plans
  accounts: Accounts
  usage: Usage
  hub: Hub
  models: TunedModels
  serving: Serving
  inference: Inference
  /** Undefined where trainings run in a cluster. */
  devices: Devices | undefined
  secrets: Pick<Secrets, 'derive'>
  /** Watches a trainer, which shares the cores with the engine. */
  watchTrainer(pid: number): () => void
}

export function createTinkerFeature(context: Context, needs: Needs): Feature {
  const { config, db, dataDir, artifacts, quota, min_free_mb, log, now } = context
  const { plans, accounts, usage, hub, models, serving, inference, devices, secrets, watchTrainer } = needs
  const folder = path.join(dataDir, 'tinker')
  const futures = new Futures(now)
  const sessions = new Sessions({ db, silent_ms: config.tinker_silent_seconds * 1000, log, now })
  const bases = createBases(hub, devices !== undefined)
  const checkpoints = new Checkpoints({ db, dataDir, min_free_mb, artifacts, quota, models, now })
  const acquireSlot = (id: string) => accounts.acquireSlotForWork(id)
  const trainers = new Trainers({
    hub,
    devices: devices!,
    trainingSetup: context.trainingSetup,
    dataDir,
    python: context.python,
    converters: context.converters,
    threads: context.threads,
    idle_ms: config.tinker_idle_seconds * 1000,
    turn_ms: config.training_turn_seconds * 1000,
    save: (run, call) => runs.save(run, call),
    onLost: (lost, why) => runs.markLost(lost, why),
    onStarted: watchTrainer,
    log,
    now,
  })
  const runs: Runs = new Runs({
    db,
    dataDir,
    min_free_mb,
    quota,
    futures,
    sessions,
    bases,
    trainers,
    checkpoints,
    usage: new RunUsage({ db, usage, price: (id) => plans.pricing(id).training_per_million_tokens, now }),
    acquireSlot,
    log,
    now,
  })
  const samplers = new Samplers({
    db,
    dataDir,
    min_free_mb,
    quota,
    futures,
    sessions,
    bases,
    checkpoints,
    hub,
    inference,
    engine: serving.engine,
    pools: serving.pools,
    usage,
    pricing: (id) => plans.pricing(id),
    acquireSlot,
    now,
  })
  const removeFiles = (session_id: string) => rm(path.join(folder, session_id), { recursive: true, force: true })
  const tinker = new Tinker({ db, dataDir, futures, sessions, bases, runs, samplers, checkpoints, removeFiles })
  const downloads = new Downloads({ db, artifacts, secrets, checkpoints, now })
  context.events.on('model.deleted', async (trx, { id }) => {
    await store.removeCheckpointsOfModel(trx, id)
    return undefined
  })
  /** Not waited for: a command of a run may take minutes. */
  const clearing = new Set<string>()
  function clear(session: Pick<store.SessionRow, 'id' | 'account_id'>): void {
    if (clearing.has(session.id)) return
    clearing.add(session.id)
    tinker
      .clear(session)
      .catch((error) => log.warn({ err: error, session: session.id }, 'a session is cleared again later'))
      .finally(() => clearing.delete(session.id))
  }
  async function look(): Promise<void> {
    for (const session of await sessions.silent()) await sessions.end(session, 'silent', null)
    for (const session of await store.sessionsToClear(db)) clear(session)
    await trainers.look()
    await checkpoints.removeExpired()
  }
  return {
    mount(app) {
      // Only these operations take Protocol Buffers.
      app.register(async (own) => {
        own.addContentTypeParser(protoType, { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
        tinkerRoutes(own, tinker, downloads, context.stopping)
      })
    },
    owned: [
      { folder: 'tinker', table: 'tinker_sessions' },
      { folder: checkpointsFolder, table: 'tinker_checkpoints' },
    ],
    async sweep() {
      const names = await readdir(folder).catch(() => [])
      for (const name of names)
        if (trainerFolder.test(name)) await rm(path.join(folder, name), { recursive: true, force: true })
      await runs.markLost(await store.liveRuns(db), 'ended with the server')
    },
    async start() {
      const task = runPeriodically(look_ms, () =>
        look().catch((error) => log.warn({ err: error }, "sessions of Tinker's API are looked at again later")),
      )
      return [
        {
          async close() {
            await task.close()
            await trainers.close()
          },
        },
      ]
    },
  }
}
