// The answers that are in progress: each can be stopped alone.
import { useEffect, useRef, useState } from 'react'
import { ask, messagesOf, requestOf } from './ask.ts'
import type { Answer, Column, Parameters, Turn } from './state.ts'

export function useAnswers(parameters: Parameters, tell: (turn: string, column: string, answer: Answer) => void) {
  const stops = useRef(new Map<string, AbortController>())
  const [running, setRunning] = useState(0)
  const stopAll = () => {
    for (const stop of stops.current.values()) stop.abort()
  }
  // A page that is left stops what it asked for.
  // biome-ignore lint/correctness/useExhaustiveDependencies: at the end alone
  useEffect(() => stopAll, [])

  async function answer(turn: Turn, before: readonly Turn[], column: Column): Promise<void> {
    const stop = new AbortController()
    const key = `${turn.id} ${column.id}`
    stops.current.set(key, stop)
    setRunning((count) => count + 1)
    try {
      const request = requestOf(column.model, messagesOf([...before, turn], column.id, parameters), parameters)
      await ask(request, stop.signal, (answer) => tell(turn.id, column.id, answer))
    } finally {
      stops.current.delete(key)
      setRunning((count) => count - 1)
    }
  }

  const stop = (turn: Turn, column: Column) => stops.current.get(`${turn.id} ${column.id}`)?.abort()
  return { running: running > 0, answer, stop, stopAll }
}
