// Client of a Ray cluster's REST API (its dashboard, port 8265): packages, jobs, and the applications of Serve.
import { request } from 'undici'
import { z } from 'zod'

/** Between the parts of an answer, too. */
const answer_ms = 30_000
const notRay = 'TUNERY_RAY_ADDRESS is perhaps no Ray dashboard'

/** The cluster does not answer, or not to us: nothing is known of its jobs until it does. */
export class RayAway extends Error {}

/** The cluster answered that a request is wrong. */
export class RayRefused extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

/** Ray's 404 of a job or package. */
const unknown = / does not exist/

const JobDetails = z.object({
  status: z.enum(['PENDING', 'RUNNING', 'STOPPED', 'SUCCEEDED', 'FAILED']),
  message: z.string().nullish(),
  error_type: z.string().nullish(),
})
type RayJob = z.infer<typeof JobDetails>

export interface RaySubmission {
  submission_id: string
  entrypoint: string
  runtime_env: { working_dir: string; env_vars: Record<string, string> }
  metadata: Record<string, string>
  entrypoint_num_cpus?: number
  entrypoint_num_gpus?: number
  entrypoint_memory?: number
  entrypoint_resources?: Record<string, number>
}

/** All methods throw RayAway and RayRefused. */
export interface RayClient {
  /** A submitted job; undefined if the cluster does not know it. */
  job(submission_id: string): Promise<RayJob | undefined>
  submit(submission: RaySubmission): Promise<void>
  /** Ends a job with SIGTERM, and SIGKILL later. Nothing happens if the cluster does not know it. */
  stop(submission_id: string): Promise<void>
  /** Forgets a job that has ended, with its logs. */
  forget(submission_id: string): Promise<void>
  hasPackage(name: string): Promise<boolean>
  uploadPackage(name: string, content: Buffer): Promise<void>
  /** The configuration and state of Serve: see docs of `GET /api/serve/applications/`. */
  applications(): Promise<unknown>
  /** Replaces all applications of the cluster by these. */
  putApplications(config: unknown): Promise<void>
}

export function createRayClient(address: string, token: string | undefined, timeout_ms = answer_ms): RayClient {
  /**
   * Not by fetch: its `sec-fetch-mode` header makes Ray take the caller for a browser, for which it refuses changes and
   * replaces the values of environment variables in what it shows.
   */
  async function call(method: 'GET' | 'POST' | 'PUT' | 'DELETE', path: string, body?: unknown): Promise<string> {
    const raw = Buffer.isBuffer(body)
    let status: number
    let text: string
    try {
      const answer = await request(new URL(path, address), {
        method,
        headers: {
          'user-agent': 'tunery',
          ...(token && { authorization: `Bearer ${token}` }),
          ...(body !== undefined && { 'content-type': raw ? 'application/octet-stream' : 'application/json' }),
        },
        body: body === undefined ? null : raw ? body : JSON.stringify(body),
        headersTimeout: timeout_ms,
        bodyTimeout: timeout_ms,
      })
      status = answer.statusCode
      text = await answer.body.text()
    } catch (error) {
      throw new RayAway(`it does not answer (${(error as Error).message})`)
    }
    if (status < 300) return text
    if (status === 401 || status === 403)
      throw new RayAway(token ? 'it refuses TUNERY_RAY_TOKEN' : 'it wants a token: set TUNERY_RAY_TOKEN')
    // A proxy in front of a head that is away: nothing is known of jobs.
    if (status < 400 || (status === 404 && !unknown.test(text))) throw new RayAway(`it answers ${status}: ${notRay}`)
    // While its head starts, Ray answers 500 to anything.
    if (status >= 500) throw new RayAway(`it answers ${status}: ${text.trim().split('\n').at(-1)?.slice(0, 300)}`)
    throw new RayRefused(status, text.trim().split('\n').at(-1)?.slice(0, 1000) ?? '')
  }

  const ifKnown = async <T>(work: Promise<T>): Promise<T | undefined> => {
    try {
      return await work
    } catch (error) {
      if (error instanceof RayRefused && error.status === 404) return undefined
      throw error
    }
  }
  const json = (text: string): unknown => {
    try {
      return JSON.parse(text)
    } catch {
      throw new RayAway(`its answer is no JSON: ${notRay}`)
    }
  }
  const jobPath = (submission_id: string) => `/api/jobs/${encodeURIComponent(submission_id)}`

  return {
    async job(submission_id) {
      const text = await ifKnown(call('GET', jobPath(submission_id)))
      if (text === undefined) return undefined
      const details = JobDetails.safeParse(json(text))
      if (!details.success) throw new RayAway('it describes its job in a way that this version does not know')
      return details.data
    },
    submit: async (submission) => void (await call('POST', '/api/jobs/', submission)),
    stop: async (submission_id) => void (await ifKnown(call('POST', `${jobPath(submission_id)}/stop`))),
    forget: async (submission_id) => void (await ifKnown(call('DELETE', jobPath(submission_id)))),
    hasPackage: async (name) => (await ifKnown(call('GET', `/api/packages/gcs/${name}`))) !== undefined,
    uploadPackage: async (name, content) => void (await call('PUT', `/api/packages/gcs/${name}`, content)),
    applications: async () => json(await call('GET', '/api/serve/applications/')),
    putApplications: async (config) => void (await call('PUT', '/api/serve/applications/', config)),
  }
}
