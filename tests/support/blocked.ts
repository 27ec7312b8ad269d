// How long work of its own has held the event loop of a service, by the service's own watch.

/** Times in seconds by source file, in which a server ran one piece of work for more than 0.2 s. */
export async function blockedSeconds(url: string): Promise<Map<string, number>> {
  const text = await (await fetch(new URL('/metrics', url))).text()
  const lines = text.matchAll(/^tunery_event_loop_blocked_seconds_sum\{where="([^"]*)",thread="running"\} (\S+)$/gm)
  return new Map(Array.from(lines, ([, where, seconds]) => [where!, Number(seconds)]))
}

/** What has been added since `before`, as text; undefined if nothing was. */
export async function blockedSince(before: ReadonlyMap<string, number>, url: string): Promise<string | undefined> {
  const added = [...(await blockedSeconds(url))]
    .map(([where, seconds]) => [where, seconds - (before.get(where) ?? 0)] as const)
    .filter(([, seconds]) => seconds > 0.01)
  return added.length > 0 ? added.map(([where, seconds]) => `${where}: ${seconds.toFixed(1)} s`).join(', ') : undefined
}
