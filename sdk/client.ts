import { TuneryError } from './errors.ts'
import type { Operations } from './generated/operations.ts'
import type { Dataset, Evaluation, Export, ExportEvent, Job, JobEvent } from './generated/types.ts'
import { type ClientOptions, createSend, pause } from './http.ts'
import { createOperations, streamRetries } from './resources.ts'
import type { FileInput, RequestOptions } from './types.ts'
import { type DatasetFields, type UploadOptions, uploadDataset } from './upload.ts'
import { verifyWebhook } from './webhooks.ts'

export interface FollowOptions extends RequestOptions {
  /** Begin behind this event's `seq`. Default: at the first event. */
  after?: number | undefined
}

interface Additions {
  datasets: {
    /** Uploads a file of examples; a large one in parts, with progress, and resumable. `POST /datasets/` */
    upload(file: FileInput, fields?: DatasetFields, options?: UploadOptions): Promise<Dataset>
  }
  jobs: {
    /** The events of a job until it has ended, through lost connections and restarts; returns the ended job. */
    follow(job_id: string, options?: FollowOptions): AsyncGenerator<JobEvent, Job, undefined>
    /** The job once it has ended. */
    wait(job_id: string, options?: RequestOptions): Promise<Job>
  }
  exports: {
    /** The events of an export until it is ready or has failed; returns the export. */
    follow(export_id: string, options?: FollowOptions): AsyncGenerator<ExportEvent, Export, undefined>
    /** The export once it is ready or has failed. */
    wait(export_id: string, options?: RequestOptions): Promise<Export>
  }
  evaluations: {
    /** The evaluation once it has ended. */
    wait(evaluation_id: string, options?: RequestOptions): Promise<Evaluation>
  }
  webhooks: {
    /** Verifies a delivery and returns its event. */
    verify: typeof verifyWebhook
  }
}

type Merged = Omit<Operations, keyof Additions> & {
  [K in keyof Additions]: Omit<Operations[K], keyof Additions[K]> & Additions[K]
}

/** A client of a Tunery service. */
export interface Tunery extends Merged {}
/** Makes a client: `new Tunery({ baseUrl, apiKey })`. */
export const Tunery = class {
  constructor(options: ClientOptions = {}) {
    Object.assign(this, createClient(options))
  }
} as unknown as new (
  options?: ClientOptions,
) => Tunery

/** Between two looks at something that has no stream of events. */
const poll_ms = 5000
/** Before a stream is opened again that a stopping service has ended. */
const reopen_ms = 1000

const jobIsOver = ({ status }: Job) => status === 'completed' || status === 'failed' || status === 'cancelled'
const exportIsOver = ({ status }: Export) => status === 'ready' || status === 'failed'
const evaluationIsOver = ({ status }: Evaluation) =>
  status === 'completed' || status === 'failed' || status === 'cancelled'

function createClient(options: ClientOptions): Merged {
  const api = createOperations(createSend(options))

  /** Events until `isOver`: a service that stops ends its streams before that. */
  async function* follow<Event extends { seq: number }, T>(
    events: (after: number, options: RequestOptions) => AsyncGenerator<Event, void, undefined>,
    get: (options: RequestOptions) => Promise<T>,
    isOver: (item: T) => boolean,
    { after = 0, ...request }: FollowOptions = {},
  ): AsyncGenerator<Event, T, undefined> {
    let seen = after
    for (;;) {
      for await (const event of events(seen, request)) {
        seen = event.seq
        yield event
      }
      const item = await get({ maxRetries: streamRetries, ...request })
      if (isOver(item)) return item
      request.onConnection?.('reconnecting')
      await pause(reopen_ms, request.signal)
    }
  }
  const last = async <T>(events: AsyncGenerator<unknown, T, undefined>): Promise<T> => {
    for (;;) {
      const { done, value } = await events.next()
      if (done) return value
    }
  }
  const followJob = (id: string, options?: FollowOptions) =>
    follow(
      (after, request) => api.jobs.events(id, { after }, request),
      (request) => api.jobs.get(id, request),
      jobIsOver,
      options,
    )
  const followExport = (id: string, options?: FollowOptions) =>
    follow(
      (after, request) => api.exports.events(id, { after }, request),
      (request) => api.exports.get(id, request),
      exportIsOver,
      options,
    )
  return {
    ...api,
    datasets: { ...api.datasets, upload: (file, fields, upload) => uploadDataset(api, file, fields, upload) },
    jobs: { ...api.jobs, follow: followJob, wait: (id, request) => last(followJob(id, request)) },
    exports: { ...api.exports, follow: followExport, wait: (id, request) => last(followExport(id, request)) },
    evaluations: {
      ...api.evaluations,
      async wait(id, request) {
        for (;;) {
          const evaluation = await api.evaluations.get(id, request)
          if (evaluationIsOver(evaluation)) return evaluation
          await pause(poll_ms, request?.signal)
        }
      },
    },
    webhooks: { ...api.webhooks, verify: verifyWebhook },
  }
}

/** Whether an error is the service's, optionally with one of these codes. */
export const isTuneryError = (error: unknown, ...codes: TuneryError['code'][]): error is TuneryError =>
  error instanceof TuneryError && (codes.length === 0 || codes.includes(error.code))
