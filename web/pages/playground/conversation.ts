// A conversation of the playground: what was asked and answered, and what is about to be.
import { useEffect, useState } from 'react'
import { randomId } from '../../../sdk/http.ts'
import { noteComparison } from '../../lib/compared.ts'
import { contentOf, withFiles } from '../../lib/pictures.ts'
import { firstProblem } from '../../ui/field.tsx'
import { useAnswers } from './answers.ts'
import { type Message, messagesOf, requestOf } from './ask.ts'
import { useModels } from './models.tsx'
import { type Column, type Turn, usePlayground, useQuestion, type Vote } from './state.ts'

/** `first`: the models to begin with. `onAsked` is called when a question was sent. */
export function useConversation(account: string, first: string[], onAsked: () => void) {
  const [state, dispatch] = usePlayground(account, first)
  const { columns, parameters, turns } = state
  const models = useModels()
  const [text, setText] = useQuestion()
  const [pictures, setPictures] = useState<string[]>([])
  const [problem, setProblem] = useState<string>()
  const { running, answer, stop, stopAll } = useAnswers(parameters, (turn, column, answer) =>
    dispatch({ type: 'answer', turn, column, answer }),
  )

  // The first time: the first model of the list.
  const firstOfList = models.data?.[0]?.value
  useEffect(() => {
    if (firstOfList && columns.length === 1 && !columns[0]!.model)
      dispatch({ type: 'columns', columns: [{ ...columns[0]!, model: firstOfList }] })
  }, [firstOfList, columns, dispatch])

  function send() {
    const user = text.trim()
    if ((!user && pictures.length === 0) || running) return
    const asked = columns.filter(({ model }) => model)
    try {
      requestOf('check', [], parameters)
    } catch (error) {
      return setProblem((error as Error).message)
    }
    if (asked.length === 0) return setProblem('Choose a model.')
    const wrong = firstProblem()
    if (wrong) return wrong.focus()
    setProblem(undefined)
    setText('')
    setPictures([])
    const turn: Turn = { id: randomId(), user, ...(pictures.length > 0 && { pictures }), answers: {} }
    dispatch({ type: 'ask', turn })
    for (const column of asked) void answer(turn, turns, column)
    if (asked.length > 1) noteComparison(account)
    onAsked()
  }

  /** Bounded with the pictures of the whole conversation, which all go into the next request. */
  async function attach(files: File[]): Promise<void> {
    const before = turns.flatMap((turn) => turn.pictures ?? [])
    const added = await withFiles([...before, ...pictures], files)
    setPictures(added.pictures.slice(before.length))
    setProblem(added.problem)
  }

  /** Takes the turn, and those after it, back into the input. */
  function edit(turn: Turn): void {
    setText(turn.user)
    setPictures(turn.pictures ?? [])
    dispatch({ type: 'cut', turn: turn.id })
  }

  function vote(turn: Turn, better: Column): void {
    if (turn.better) return
    const prompt = messagesOf([...turns.slice(0, turns.indexOf(turn)), { ...turn, answers: {} }], better.id, parameters)
    dispatch({ type: 'vote', turn: turn.id, better: better.id, votes: votesOf(turn, better, columns, prompt) })
  }

  const add = () =>
    dispatch({ type: 'columns', columns: [...columns, { id: randomId(), model: columns.at(-1)?.model ?? '' }] })
  /** The request that is about to be sent; undefined while the parameters are wrong. */
  const requestNow = () => {
    try {
      return requestOf(
        columns[0]!.model || 'MODEL',
        messagesOf(turns, columns[0]!.id, parameters).concat(
          text || pictures.length > 0 ? [{ role: 'user', content: contentOf(text, pictures) }] : [],
        ),
        parameters,
      )
    } catch {
      return undefined
    }
  }
  return {
    ...state,
    dispatch,
    models,
    input: { text, setText, pictures, setPictures, problem, attach },
    answers: { running, answer, stop, stopAll },
    send,
    edit,
    vote,
    add,
    requestNow,
  }
}

/** One vote for each other column that answered otherwise. */
function votesOf(turn: Turn, better: Column, columns: readonly Column[], prompt: Message[]): Vote[] {
  const chosen = turn.answers[better.id]!
  return columns.flatMap(({ id }) => {
    const rejected = turn.answers[id]
    if (id === better.id || !rejected?.text || rejected.text === chosen.text) return []
    const models = { chosen: chosen.model, rejected: rejected.model }
    return [{ id: randomId(), prompt, chosen: chosen.text, rejected: rejected.text, models }]
  })
}
