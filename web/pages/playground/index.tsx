import { useSearch } from '@tanstack/react-router'
import { Code2, Plus, SquarePen } from 'lucide-react'
import { useEffect, useRef, useState } from 'react'
import { randomId } from '../../../sdk/http.ts'
import { noteComparison } from '../../lib/compared.ts'
import { contentOf, withFiles } from '../../lib/pictures.ts'
import { useMay, useSession } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { EmptyState } from '../../ui/feedback.tsx'
import { firstProblem } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Switch } from '../../ui/toggles.tsx'
import { AnswerCell } from './answer-cell.tsx'
import { useAnswers } from './answers.ts'
import { type Message, messagesOf, requestOf } from './ask.ts'
import { CodeDialog } from './code-dialog.tsx'
import { Composer } from './composer.tsx'
import { letterOf, ModelsCard, useModels } from './models.tsx'
import { ParametersPanel } from './parameters.tsx'
import { Question } from './question.tsx'
import { RowsPanel } from './rows.tsx'
import { type Column, type Turn, usePlayground, useQuestion, type Vote } from './state.ts'
import { useTrainingRows } from './training-rows.ts'
import { Votes } from './votes.tsx'

const columnsMax = 4

export default function PlaygroundPage() {
  const mayAsk = useMay('inference')
  const { profile } = useSession()
  if (!mayAsk)
    return (
      <Page title="Playground">
        <Card>
          <EmptyState title="No access">
            Your role ({profile.role}) can't call models. Ask an admin or owner of the account.
          </EmptyState>
        </Card>
      </Page>
    )
  return <Playground account={profile.account.id} />
}

function Playground({ account }: { account: string }) {
  const search = useSearch({ from: '/shell/playground' })
  const [state, dispatch] = usePlayground(account, search.models?.split(',').filter(Boolean).slice(0, columnsMax) ?? [])
  const { columns, parameters, turns, votes } = state
  const models = useModels()
  const [text, setText] = useQuestion()
  const [pictures, setPictures] = useState<string[]>([])
  const [blind, setBlind] = useState(false)
  const [problem, setProblem] = useState<string>()
  const [shownCode, setShownCode] = useState(false)
  const { running, answer, stop, stopAll } = useAnswers(parameters, (turn, column, answer) =>
    dispatch({ type: 'answer', turn, column, answer }),
  )
  const end = useRef<HTMLDivElement>(null)
  /** The tuned model that a name stands for. */
  const tunedOf = (name: string) => {
    const model = models.data?.find(({ value }) => value === name)?.model ?? name
    return model.startsWith('mdl_') ? model : undefined
  }
  const trained = useTrainingRows(columns.map(({ model }) => tunedOf(model)).findLast((model) => model !== undefined))
  const { examples } = trained

  // The first time: the first model of the list.
  const first = models.data?.[0]?.value
  useEffect(() => {
    if (first && columns.length === 1 && !columns[0]!.model)
      dispatch({ type: 'columns', columns: [{ ...columns[0]!, model: first }] })
  }, [first, columns, dispatch])

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
    requestAnimationFrame(() => end.current?.scrollIntoView({ block: 'end' }))
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
  return (
    <Page
      title="Playground"
      actions={
        <>
          <Button icon={<Code2 aria-hidden />} onClick={() => setShownCode(true)}>
            View code
          </Button>
          <Button
            icon={<SquarePen aria-hidden />}
            disabled={turns.length === 0}
            onClick={() => dispatch({ type: 'clear' })}
          >
            New conversation
          </Button>
          <Button icon={<Plus aria-hidden />} disabled={columns.length >= columnsMax} onClick={add}>
            Add model
          </Button>
        </>
      }
    >
      <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,1fr)_19rem]">
        <div className="grid min-w-0 gap-4">
          <ModelsCard
            models={models}
            columns={columns}
            blind={blind}
            onColumns={(columns) => dispatch({ type: 'columns', columns })}
          />
          {turns.length === 0 && <Beginning examples={examples} onExample={setText} />}
          {turns.map((turn) => (
            <Question
              key={turn.id}
              turn={turn}
              columns={columns}
              editable={!running}
              onEdit={() => edit(turn)}
              answerOf={(column, index) => (
                <AnswerCell
                  key={column.id}
                  turn={turn}
                  column={column}
                  columns={columns}
                  letter={letterOf(index)}
                  nameOf={(id) => models.data?.find(({ value }) => value === id)?.label ?? id}
                  blind={blind && !turn.better}
                  onVote={() => vote(turn, column)}
                  onStop={() => stop(turn, column)}
                  onRetry={() => void answer(turn, turns.slice(0, turns.indexOf(turn)), column)}
                  tuned={tunedOf(turn.answers[column.id]?.model ?? column.model)}
                  system={parameters.system}
                  onSystem={(system) => dispatch({ type: 'parameters', parameters: { ...parameters, system } })}
                />
              )}
            />
          ))}
          <div ref={end} className="sticky bottom-0 z-10 bg-canvas pb-3">
            <Composer
              text={text}
              onText={setText}
              pictures={pictures}
              onFiles={(files) => void attach(files)}
              onRemove={(index) => setPictures(pictures.toSpliced(index, 1))}
              problem={problem}
              running={running}
              onSend={send}
              onStop={stopAll}
            />
          </div>
          <RowsPanel columns={columns} parameters={parameters} of={search.rows} />
        </div>
        <div className="grid gap-4">
          <ParametersPanel
            value={parameters}
            onChange={(next) => dispatch({ type: 'parameters', parameters: next })}
            trainedWith={trained.system}
          />
          {columns.length > 1 && (
            <Card>
              <Switch label="Blind" help="Hides model names until you vote." checked={blind} onChange={setBlind} />
            </Card>
          )}
          <Votes votes={votes} onClear={() => dispatch({ type: 'votes', votes: [] })} />
        </div>
      </div>
      <CodeDialog open={shownCode} onOpenChange={setShownCode} requestNow={requestNow} />
    </Page>
  )
}

/** Before the first question. */
function Beginning({ examples, onExample }: { examples: readonly string[]; onExample: (example: string) => void }) {
  return (
    <Card>
      <EmptyState
        title="Ask a question"
        action={examples.map((example) => (
          <Button key={example} size="sm" onClick={() => onExample(example)}>
            <span className="max-w-72 truncate">{example}</span>
          </Button>
        ))}
      >
        Every model gets the same question, and answers appear side by side.
        {examples.length > 0 && ' Try a prompt from the training data:'}
      </EmptyState>
    </Card>
  )
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
