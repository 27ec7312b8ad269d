// What a job's events have already reported. An attempt that takes over resumes from the last checkpoint and trains the
// steps after it again; readers of the events should see each step once.
import type { Queryable, Trx } from '../../platform/db/open.ts'
import type { TrainerEvent } from '../../platform/trainer/trainer.ts'

interface Reported {
  /** The last step of the metrics, and which figures it has. */
  step: number
  figures: Set<string>
  /** The last step whose loss was reported; each event has those of the steps since the one before. */
  loss_step: number
  /** 0 to 1. */
  progress: number
  /** Steps and prompts of the newest samples. */
  samples: Set<string>
}

/** `silent`: the event updates the job and is no news for its readers. */
export type Fresh = { event: TrainerEvent; silent?: boolean } | undefined

/** A filter of one attempt's events, in their order. */
export function createRepeatFilter(job_id: string) {
  let reported: Reported | undefined
  return {
    /** The event without what was reported before; undefined if nothing is left. `trx` reads the job's events once. */
    async fresh(trx: Trx, event: TrainerEvent): Promise<Fresh> {
      reported ??= await readReported(trx, job_id)
      return withoutRepeats(reported, event)
    },
  }
}

/** Newest events of a kind that are read: those of one step, with some to spare. */
const newest = 50

async function readReported(db: Queryable, job_id: string): Promise<Reported> {
  const reported: Reported = { step: -1, figures: new Set(), loss_step: -1, progress: 0, samples: new Set() }
  for (const type of ['metrics', 'checkpoint', 'progress', 'sample'] as const) {
    const rows = await db
      .selectFrom('job_events')
      .select(['message', 'data_json'])
      .where('job_id', '=', job_id)
      .where('type', '=', type)
      .orderBy('seq', 'desc')
      .limit(newest)
      .execute()
    for (const { message, data_json } of rows.toReversed())
      withoutRepeats(reported, { type, message, data: JSON.parse(data_json ?? '{}') })
  }
  return reported
}

function withoutRepeats(reported: Reported, event: TrainerEvent): Fresh {
  const data = event.data ?? {}
  const step = typeof data.step === 'number' ? data.step : undefined
  if (step === undefined) return { event }
  switch (event.type) {
    case 'metrics': {
      const figures = Object.keys(data).filter((name) => typeof data[name] === 'number')
      if (step < reported.step) return undefined
      if (step === reported.step && figures.every((name) => reported.figures.has(name))) return undefined
      if (step > reported.step) reported.figures.clear()
      reported.step = step
      for (const name of figures) reported.figures.add(name)
      return { event: withNewLosses(reported, event) }
    }
    case 'checkpoint':
      return { event: withNewLosses(reported, event) }
    case 'progress': {
      const progress = typeof data.progress === 'number' ? data.progress : 0
      const silent = progress <= reported.progress
      reported.progress = Math.max(progress, reported.progress)
      return { event: { ...event, data: { ...data, progress: reported.progress } }, silent }
    }
    case 'sample': {
      const name = JSON.stringify([step, data.prompt])
      if (reported.samples.has(name)) return undefined
      reported.samples.add(name)
      return { event }
    }
    default:
      return { event }
  }
}

function withNewLosses(reported: Reported, event: TrainerEvent): TrainerEvent {
  const losses = event.data?.losses
  if (!Array.isArray(losses)) return event
  const fresh = (losses as [number, number][]).filter(([step]) => step > reported.loss_step)
  reported.loss_step = Math.max(reported.loss_step, ...fresh.map(([step]) => step))
  return { ...event, data: { ...event.data, losses: fresh } }
}
