// Section 2.8 of the interface as Serve's own autoscaling.

/** Cooldowns in milliseconds. */
export interface ReplicaPolicy {
  min_replicas: number
  max_replicas: number
  target_requests_per_replica: number
  scale_up_cooldown_ms: number
  scale_down_cooldown_ms: number
}

/** Serve's delays are how long a demand must last before it acts. */
export const autoscalingConfig = (policy: ReplicaPolicy) => ({
  min_replicas: policy.min_replicas,
  max_replicas: policy.max_replicas,
  initial_replicas: Math.max(1, policy.min_replicas),
  target_ongoing_requests: policy.target_requests_per_replica,
  upscale_delay_s: policy.scale_up_cooldown_ms / 1000,
  downscale_delay_s: policy.scale_down_cooldown_ms / 1000,
  ...(policy.min_replicas === 0 && { downscale_to_zero_delay_s: policy.scale_down_cooldown_ms / 1000 }),
})
