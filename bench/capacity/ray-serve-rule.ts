// Ray Serve's rule for the number of replicas, written from its documentation and source (ray 2.5x,
// python/ray/serve/autoscaling_policy.py): the mean number of requests over a window, divided by the target; a change
// is made once it was due at every look for the whole delay.

export interface ServeConfig {
  min_replicas: number
  max_replicas: number
  target_ongoing_requests: number
  upscale_delay_s: number
  downscale_delay_s: number
  look_back_period_s: number
}

export class ServeRule {
  private readonly config: ServeConfig
  private readonly seen: { at: number; requests: number }[] = []
  /** Since when more, or fewer, replicas are due. */
  private due: { up: boolean; since: number } | undefined

  constructor(config: ServeConfig) {
    this.config = config
  }

  /** `requests`: running and queued, now. Call it at least once a second. */
  decide(now_s: number, requests: number, replicas: number): number {
    const { min_replicas, max_replicas, target_ongoing_requests, look_back_period_s, ...delay } = this.config
    const { seen } = this
    seen.push({ at: now_s, requests })
    while (seen[0]!.at <= now_s - look_back_period_s) seen.shift()
    if (replicas === 0) return requests > 0 ? 1 : 0
    const mean = seen.reduce((sum, one) => sum + one.requests, 0) / seen.length
    const desired = Math.max(min_replicas, Math.min(max_replicas, Math.ceil(mean / target_ongoing_requests)))
    if (desired === replicas) {
      this.due = undefined
      return replicas
    }
    const up = desired > replicas
    if (this.due?.up !== up) this.due = { up, since: now_s }
    if (now_s - this.due.since < (up ? delay.upscale_delay_s : delay.downscale_delay_s)) return replicas
    this.due = undefined
    // To zero it goes only from one.
    return up || replicas === 1 ? desired : Math.max(1, desired)
  }
}
