// What features tell each other in this process: an earlier one emits, later ones listen. What accounts get is in the
// outbox (server/platform/events/outbox.ts).
import type { Download } from '../../contract/hub.ts'
import type { Trx } from '../platform/db/open.ts'

/** All events, with what they tell. */
export interface Events {
  'deployment.deleted': { id: string }
  'download.changed': { model_id: string; download: Download }
  'model.deleted': { id: string; kind: 'adapter' | 'model'; base_model_id: string; gguf: string }
}

/**
 * Called in the transaction that makes the event true. The function that it resolves with is called after the commit.
 */
type Listener<T> = (trx: Trx, event: T) => Promise<(() => void) | undefined>

export interface EventBus {
  on<N extends keyof Events>(name: N, listener: Listener<Events[N]>): void
  /** Calls the listeners one after the other. Call the function that it resolves with after the commit. */
  emit<N extends keyof Events>(trx: Trx, name: N, event: Events[N]): Promise<() => void>
}

export function createEventBus(): EventBus {
  const listeners: { [N in keyof Events]: Listener<Events[N]>[] } = {
    'deployment.deleted': [],
    'download.changed': [],
    'model.deleted': [],
  }
  return {
    on: (name, listener) => void listeners[name].push(listener),
    async emit(trx, name, event) {
      const effects: ((() => void) | undefined)[] = []
      for (const listener of listeners[name]) effects.push(await listener(trx, event))
      return () => {
        for (const effect of effects) effect?.()
      }
    },
  }
}
