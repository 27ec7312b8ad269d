// What metrics say of the machine and of what all processes share: queue, database, disk, engine.
import { statfs } from 'node:fs/promises'
import type { Context } from '../feature.ts'
import type { ReadableEngine } from './engine-state.ts'

export function exportMachine(
  { metrics, queue, servers, artifacts, dataDir, min_free_mb, now }: Context,
  engine: ReadableEngine,
): void {
  const { queueEntries, queueAge, databaseUp, databaseSeconds, diskFree, diskKept, engineUp } = metrics
  metrics.onLook(
    async () => {
      const began = performance.now()
      const counts = await queue.counts()
      databaseUp.set(1)
      databaseSeconds.set((performance.now() - began) / 1000)
      metrics.servers.set(Math.max(1, (await servers.list()).length))
      // A kind without entries is not among them.
      queueEntries.reset()
      queueAge.reset()
      for (const { kind, waiting, running, oldest_at } of counts) {
        queueEntries.set({ kind, state: 'waiting' }, waiting)
        queueEntries.set({ kind, state: 'running' }, running)
        queueAge.set({ kind }, oldest_at === null ? 0 : Math.max(0, now() - oldest_at) / 1000)
      }
    },
    () => databaseUp.set(0),
  )
  metrics.onLook(async () => {
    const { bavail, bsize } = await statfs(dataDir)
    diskFree.set(bavail * bsize)
    diskKept.set(min_free_mb * 1e6)
  })
  metrics.onLook(async () => metrics.storageUp.set((await artifacts.problem()) === undefined ? 1 : 0))
  // The engine listens on a private socket, so its metrics are in the server's answer.
  metrics.onScrape(async () => {
    const text = await engine.read('/metrics')
    engineUp.set(text === undefined ? 0 : 1)
    return [{ engine: 'shared', text }]
  })
}
