// The writer of Ray Serve's applications. Serve takes them all at once: a PUT removes every application that it does
// not name, also those of others. So each change reads what is there, changes its own, and writes all back, one writer
// at a time.
import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import type { RayClient } from './client.ts'
import { RayAway } from './client.ts'

/** An application as Serve's REST API takes it. */
export type Application = { name: string; route_prefix: string } & Record<string, unknown>

/** Names of our applications begin so; all others belong to somebody else. */
export const ownPrefix = 'tunery-'

export const routeOf = (id: string) => `/${ownPrefix}${id}`

/** The deployment of an application that only passes requests on to its replicas. */
export const doorDeployment = 'Door'

const Deployment = z.looseObject({
  message: z.string(),
  target_num_replicas: z.number().nullish(),
  replicas: z
    .array(
      z.looseObject({
        replica_id: z.string(),
        state: z.string(),
        node_ip: z.string().nullish(),
        start_time_s: z.number().nullish(),
      }),
    )
    .nullish(),
  autoscaling_detail: z.looseObject({ decisions: z.array(z.looseObject({ reason: z.string() })).nullish() }).nullish(),
})

const Details = z.looseObject({
  proxy_location: z.string().nullish(),
  http_options: z.record(z.string(), z.unknown()).nullish(),
  grpc_options: z.record(z.string(), z.unknown()).nullish(),
  target_capacity: z.number().nullish(),
  proxies: z.record(z.string(), z.looseObject({ status: z.string(), node_ip: z.string().nullish() })),
  applications: z.record(
    z.string(),
    z.looseObject({
      status: z.string(),
      message: z.string(),
      route_prefix: z.string().nullish(),
      deployments: z.record(z.string(), Deployment),
      deployed_app_config: z.looseObject({ name: z.string() }).nullish(),
    }),
  ),
})
type Details = z.infer<typeof Details>

export interface ApplicationState {
  /** DEPLOYING, RUNNING, DEPLOY_FAILED, DELETING, UNHEALTHY, NOT_STARTED. */
  status: string
  message: string
  config: Record<string, unknown> | undefined
  /** How many replicas Serve wants, and those that it has: STARTING, UPDATING, RECOVERING, RUNNING, STOPPING. */
  target_replicas: number
  replicas: { id: string; state: string; node: string; started_at: number | null }[]
  /** Why Serve wants so many, where it says it. */
  reason: string | null
}

export interface Serve {
  /** Our applications, by name. Throws RayAway. */
  own(): Promise<Map<string, ApplicationState>>
  /** Addresses of the proxies that take requests. */
  proxies(): Promise<string[]>
  /**
   * Changes our applications: `change` gets their configurations by name, and changes the map. Nothing is written if it
   * leaves them as they are. Throws RayAway, RayRefused, and ApplicationTaken.
   */
  change(change: (own: Map<string, Application>) => void): Promise<void>
}

/** Another application has the name or the route of one of ours. */
export class ApplicationTaken extends Error {}

/** Runs `work` while no other process of the installation writes. */
export type WriterLock = <T>(work: () => Promise<T>) => Promise<T>

interface Options {
  /** Where Serve listens, for the first application of a cluster. Later ones cannot change it. */
  http: { host: string; port: number }
  proxy_location: 'EveryNode' | 'HeadOnly'
}

export function createServe(ray: RayClient, lock: WriterLock, { http, proxy_location }: Options): Serve {
  async function read(): Promise<Details> {
    const details = Details.safeParse(await ray.applications())
    if (!details.success) throw new RayAway('it describes its applications in a way that this version does not know')
    return details.data
  }

  return {
    async own() {
      const { applications } = await read()
      return new Map(
        Object.entries(applications)
          .filter(([name]) => name.startsWith(ownPrefix))
          .map(([name, { status, message, deployments, deployed_app_config }]) => {
            // The application's message only names the deployments; theirs have the cause.
            const causes = Object.values(deployments).map((each) => each.message)
            const messages = [message, ...causes.map(withoutTraceback)].filter(Boolean).join('\n')
            const all = Object.entries(deployments).flatMap(([name, each]) => (name === doorDeployment ? [] : [each]))
            const state: ApplicationState = {
              status,
              message: messages,
              config: deployed_app_config ?? undefined,
              target_replicas: all.reduce((sum, each) => sum + (each.target_num_replicas ?? 0), 0),
              replicas: all.flatMap((each) =>
                (each.replicas ?? []).map(({ replica_id, state, node_ip, start_time_s }) => ({
                  id: replica_id,
                  state,
                  node: node_ip ?? 'unknown',
                  started_at: start_time_s ? Math.round(start_time_s * 1000) : null,
                })),
              ),
              reason: all.flatMap((each) => each.autoscaling_detail?.decisions?.at(-1)?.reason ?? [])[0] ?? null,
            }
            return [name, state]
          }),
      )
    },

    async proxies() {
      const { proxies, http_options } = await read()
      const port = Number(http_options?.port ?? http.port)
      return Object.values(proxies)
        .filter(({ status, node_ip }) => status === 'HEALTHY' && node_ip)
        .map(({ node_ip }) => `http://${node_ip!.includes(':') ? `[${node_ip}]` : node_ip}:${port}`)
    },

    change: (change) =>
      lock(async () => {
        const before = await read()
        // What was deployed by code (`serve.run`) has no configuration, and a PUT leaves it alone.
        const configured = Object.values(before.applications).flatMap(({ deployed_app_config, status }) =>
          deployed_app_config && status !== 'DELETING' ? [deployed_app_config as Application] : [],
        )
        const others = configured.filter(({ name }) => !name.startsWith(ownPrefix))
        const own = new Map(
          configured.filter(({ name }) => name.startsWith(ownPrefix)).map((each) => [each.name, each]),
        )
        const wanted = new Map(own)
        change(wanted)
        if (isDeepStrictEqual([...own].sort(byName), [...wanted].sort(byName))) return
        for (const { name, route_prefix } of wanted.values()) {
          if (!name.startsWith(ownPrefix)) throw new Error(`'${name}' does not begin with ${ownPrefix}`)
          const owner = Object.entries(before.applications).find(
            ([other, each]) => !other.startsWith(ownPrefix) && each.route_prefix === route_prefix,
          )
          if (owner) throw new ApplicationTaken(`the route ${route_prefix} belongs to the application ${owner[0]}`)
        }
        const { http_options, grpc_options, target_capacity } = before
        await ray.putApplications({
          // Serve's own options are kept: it ignores others while it runs, and forgets those that are left out.
          proxy_location: before.proxy_location ?? proxy_location,
          http_options: http_options ?? http,
          ...(grpc_options && { grpc_options }),
          ...(target_capacity != null && { target_capacity }),
          applications: [...others, ...wanted.values()],
        })
      }),
  }
}

/** What Serve says of a start that failed: its sentence, and the error at the end of Python's traceback. */
export function withoutTraceback(message: string): string {
  const frame = message.lastIndexOf('\n  File "')
  if (frame === -1) return message
  const error = message
    .slice(frame)
    .split('\n')
    .filter((line) => line && !line.startsWith(' '))
  return [message.split('\n', 1)[0], ...error].join(' ')
}

const byName = ([a]: [string, unknown], [b]: [string, unknown]) => (a < b ? -1 : 1)
