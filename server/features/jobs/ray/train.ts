// Runs one attempt at a job in a Ray cluster, or attaches to the run that an earlier attempt submitted: a training does
// not end with the server that follows it.

import { randomBytes } from 'node:crypto'
import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import { type LeaseContext, withLease } from '../../../platform/queue/lease-writes.ts'
import type { Claim } from '../../../platform/queue/queue.ts'
import { RayAway, type RayClient, RayRefused } from '../../../platform/ray/client.ts'
import type { Secrets } from '../../../platform/storage/secrets.ts'
import { runDir } from '../../../platform/trainer/run-folder.ts'
import { type TrainerEvent, TrainerEventSchema, type TrainerExit } from '../../../platform/trainer/trainer.ts'
import type { Run, TrainerEnd } from '../host.ts'
import type { JobRow } from '../store.ts'
import { fetchReceived, type RunFiles, removeReceived } from './received.ts'
import type { Resources } from './resources.ts'
import { tokenContext } from './routes.ts'
import * as runs from './runs.ts'

/** Between looks at the cluster. Lines arrive in between. */
const poll_ms = 2000
/** Between looks at the database for lines that another process received. */
const lines_ms = 500
/** A run that reported within this time is running, whatever the cluster says. Four missed heartbeats. */
const fresh_ms = 20_000
/** After this time without a report the cluster has to end a run that it calls running. */
const silent_ms = 180_000
const linesPage = 500
/** Two as the trainer keeps, and the one that is not recorded yet. */
const keptCheckpoints = 3

/** Time for a stopping trainer to save its checkpoint, which has to travel, before the cluster ends it. */
const grace_ms = 180_000

interface Needs {
  lease: LeaseContext
  files: RunFiles
  installation: string
  log: Logger
  now(): number
  ray: RayClient
  secrets: Secrets
  codePackage: () => Promise<string>
  resources(job: JobRow, run: runs.Run): Promise<Resources>
  /** The address of this service as the cluster's machines see it. */
  serviceUrl(): string
  python: string
  /** Resolves at the next report of a job's run, or when the time is over or the signal aborts. */
  waitForReport(job_id: string, wait_ms: number, signal: AbortSignal): Promise<void>
}

/** Trains until the run ends, or continues without this worker. Throws what the cluster refuses. */
export async function followRun(needs: Needs, claim: Claim, job: JobRow, events: Run): Promise<TrainerEnd> {
  const { ray, files, log, now } = needs
  const { db } = needs.lease
  const run = (await runs.live(db, job.id)) ?? (await createRun(needs, claim, job))
  const { attempt, submission_id } = run
  const attached_at = now()
  const wakes = AbortSignal.any([events.stopping, events.stopRequested, events.turnOver, events.failed])

  let taken = 0
  let exit: TrainerExit | undefined
  /** Takes the lines that have arrived. */
  async function takeLines() {
    for (;;) {
      const lines = await runs.linesAfter(db, run, taken, linesPage)
      for (const { seq, type, line_json } of lines) {
        taken = seq
        const line = JSON.parse(line_json)
        if (type === 'exit') exit = exitOf(line.data)
        const event = TrainerEventSchema.safeParse(line).data
        if (!event) continue
        if (event.data?.files) await fetchFiles(event.type, event.data.files)
        delete event.data?.files
        const local = event.type === 'result' ? withLocalPaths(event, runDir(files.dataDir, job.id, attempt)) : event
        events.onEvent(local, attempt, (trx) => runs.markRecorded(trx, run, seq))
        if (event.type === 'checkpoint') await keepNewest(needs, run)
      }
      if (lines.length < linesPage) return
    }
  }

  /** A checkpoint that is nowhere is not resumed from; without its result a job is tried again. */
  async function fetchFiles(type: string, names: unknown) {
    try {
      await fetchReceived(files, run, names)
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      if (type === 'result') throw new Error(error.message)
      log.warn({ err: error, job: job.id, attempt }, 'a checkpoint of a run is not in the storage')
    }
  }

  let running = job.status === 'running'
  /** Tells what the job does, by its reports and by the cluster's word. */
  function show(seen_at: number | null, why: { message: string; code: string }) {
    const reports = seen_at !== null && now() - seen_at < fresh_ms
    if (reports && !running) events.onRunning(attempt)
    // After a restart of this server the run needs time to find it again.
    else if (!reports && running && now() - attached_at > fresh_ms) events.onWaiting(why.message, { code: why.code })
    else return
    running = reports
  }

  let away: string | undefined
  let noted: string | undefined
  const note = (message: string, code: string) => {
    if (noted !== code) events.onNote(message, { code })
    noted = code
  }
  let looked_at = 0
  let stop_by = Number.POSITIVE_INFINITY
  for (;;) {
    await takeLines()
    if (exit) return { how: 'exited', exit }
    if (events.failed.aborted) return { how: 'detached' }
    if (events.stopRequested.aborted && events.stopRequested.reason === 'cancel')
      return { how: 'lost', message: 'The job was cancelled' }
    if (events.stopping.aborted) return { how: 'detached' }
    if (events.turnOver.aborted && stop_by === Number.POSITIVE_INFINITY) await runs.update(db, run, { turn_over: 1 })
    if (events.stopRequested.aborted || events.turnOver.aborted) stop_by = Math.min(stop_by, now() + grace_ms)
    if (now() > stop_by) return { how: 'lost', message: 'The trainer did not stop in time' }

    if (now() - looked_at >= poll_ms) {
      looked_at = now()
      const current = await runs.find(db, job.id, attempt)
      if (!current || current.ended_at !== null) return { how: 'lost', message: 'The run was ended' }
      try {
        const rayJob = await ray.job(submission_id)
        if (away !== undefined) events.onNote('The cluster answers again.', { code: 'cluster_back' })
        away = undefined
        if (!rayJob) {
          if (current.submitted_at !== null)
            return { how: 'lost', message: 'The cluster no longer knows the run: its head was restarted' }
          await submit(needs, job, current)
        } else if (current.submitted_at === null) await runs.update(db, run, { submitted_at: now() })
        if (rayJob && !['PENDING', 'RUNNING'].includes(rayJob.status)) {
          // Its last lines may have come since.
          await takeLines()
          if (exit) return { how: 'exited', exit }
          log.warn({ job: job.id, attempt, found: rayJob }, 'a run ended in the cluster without a word')
          return { how: 'lost', message: lossOf(rayJob.status, rayJob.error_type) }
        }
        if (rayJob?.status === 'PENDING')
          note('The job waits in the cluster for a machine with enough free cores, memory or GPUs.', 'cluster_pending')
        const silent_for = now() - Math.max(current.seen_at ?? 0, attached_at)
        if (rayJob?.status === 'RUNNING' && silent_for > silent_ms)
          return { how: 'lost', message: `The trainer has not reported for ${Math.round(silent_for / 1000)} s` }
        show(current.seen_at, { message: 'The job waits: its machine does not report.', code: 'cluster_silent' })
      } catch (error) {
        if (!(error instanceof RayAway)) throw error
        if (away === undefined) {
          log.warn({ job: job.id, reason: error.message }, 'the Ray cluster is away')
          events.onNote('The cluster does not answer. The job continues when it does.', { code: 'cluster_away' })
        }
        away = error.message
        show(current.seen_at, {
          message: 'The job waits for the cluster, which does not answer.',
          code: 'cluster_away',
        })
      }
    }
    await needs.waitForReport(job.id, lines_ms, wakes)
    // A signal that has aborted stays so: without this the loop would spin until the trainer has stopped.
    if (wakes.aborted) await sleep(lines_ms / 2)
  }
}

async function createRun({ lease, secrets, now }: Needs, claim: Claim, job: JobRow): Promise<runs.Run> {
  const { attempt } = claim
  const token = randomBytes(32).toString('base64url')
  const run: runs.Run = {
    job_id: job.id,
    attempt,
    submission_id: `tunery-${job.id}-${attempt}`,
    token_encrypted: secrets.encrypt(token, tokenContext(job.id, attempt)),
    received: 0,
    recorded: 0,
    turn_over: 0,
    created_at: now(),
    submitted_at: null,
    seen_at: null,
    ended_at: null,
    cleared_at: null,
  }
  await withLease(lease, claim, (trx) => runs.insert(trx, run))
  return run
}

/** Submits a run that the cluster does not know. A second submission of the same id is refused by the cluster. */
async function submit(needs: Needs, job: JobRow, run: runs.Run): Promise<void> {
  const { lease, ray, secrets, now } = needs
  const { resources, environment } = await needs.resources(job, run)
  const token = secrets.decrypt(run.token_encrypted, tokenContext(job.id, run.attempt))
  try {
    await ray.submit({
      submission_id: run.submission_id,
      // By the cluster's own Python, which a training over several machines needs.
      entrypoint: 'python -m trainer.cli.remote',
      runtime_env: {
        working_dir: await needs.codePackage(),
        env_vars: {
          TUNERY_RUN_URL: `${needs.serviceUrl()}/internal/runs/${job.id}/${run.attempt}`,
          TUNERY_RUN_TOKEN: token,
          TUNERY_RUN_PYTHON: needs.python,
          TUNERY_RUN_INSTALLATION: needs.installation,
          RAY_JOB_STOP_WAIT_TIME_S: '45',
          ...(job.traceparent !== null && { TRACEPARENT: job.traceparent }),
          ...environment,
        },
      },
      metadata: { tunery_job: job.id, tunery_attempt: String(run.attempt) },
      ...resources,
    })
  } catch (error) {
    if (!(error instanceof RayRefused)) throw error
    if (!(await ray.job(run.submission_id))) throw new Error(`the Ray cluster refuses the job: ${error.message}`)
  }
  await runs.update(lease.db, run, { submitted_at: now() })
}

function exitOf(data: Record<string, unknown> | undefined): TrainerExit {
  return {
    status: typeof data?.status === 'number' ? data.status : null,
    signal: typeof data?.signal === 'string' ? data.signal : null,
    log: String(data?.log ?? ''),
  }
}

/** In words for users; the cluster's own message may show its paths and goes to the log. */
function lossOf(status: string, error_type: string | null | undefined): string {
  if (status === 'STOPPED') return 'The run was stopped in the cluster'
  if (/SUPERVISOR_ACTOR/.test(error_type ?? '')) return "The cluster lost the trainer's machine"
  return 'The run ended in the cluster before its trainer did'
}

/** A result whose files are where the run has stored them here. Throws if one is outside of its folder. */
function withLocalPaths(event: TrainerEvent, folder: string): TrainerEvent {
  const local = (value: unknown) => {
    if (typeof value !== 'string') return value
    const target = path.resolve(folder, value)
    if (!target.startsWith(folder + path.sep)) throw new Error(`a result names ${value}, outside of its folder`)
    return target
  }
  const artifact = (data: Record<string, unknown>): Record<string, unknown> => ({
    ...data,
    folder: local(data.folder),
    gguf: local(data.gguf),
    projector: local(data.projector),
    probe: local(data.probe),
  })
  const data = event.data ?? {}
  const kept = Array.isArray(data.kept) ? data.kept.map(artifact) : data.kept
  return { ...event, data: { ...artifact(data), rows: local(data.rows), drafts: local(data.drafts), kept } }
}

/** Removes older checkpoints, as the trainer does where it runs. */
async function keepNewest({ files, log }: Needs, run: runs.Run): Promise<void> {
  const checkpoints = path.join(runDir(files.dataDir, run.job_id, run.attempt), 'checkpoints')
  const steps = (await readdir(checkpoints).catch(() => []))
    .map((name) => Number(/^step-(\d+)$/.exec(name)?.[1]))
    .filter((step) => !Number.isNaN(step))
    .sort((a, b) => b - a)
  for (const step of steps.slice(keptCheckpoints)) {
    await rm(path.join(checkpoints, `step-${step}`), { recursive: true, force: true })
    await removeReceived(files, run, `checkpoints/step-${step}`).catch((error) =>
      log.warn({ err: error, job: run.job_id }, 'a superseded checkpoint stays in the storage until the job ends'),
    )
  }
}
