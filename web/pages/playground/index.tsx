import { useSearch } from '@tanstack/react-router'
import { Code2, Plus, SquarePen } from 'lucide-react'
import { useRef, useState } from 'react'
import { useMay, useSession } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { EmptyState } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Switch } from '../../ui/toggles.tsx'
import { AnswerCell } from './answer-cell.tsx'
import { CodeDialog } from './code-dialog.tsx'
import { Composer } from './composer.tsx'
import { useConversation } from './conversation.ts'
import { letterOf, ModelsCard } from './models.tsx'
import { ParametersPanel } from './parameters.tsx'
import { Question } from './question.tsx'
import { RowsPanel } from './rows.tsx'
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
  const end = useRef<HTMLDivElement>(null)
  const conversation = useConversation(
    account,
    search.models?.split(',').filter(Boolean).slice(0, columnsMax) ?? [],
    () => requestAnimationFrame(() => end.current?.scrollIntoView({ block: 'end' })),
  )
  const { columns, parameters, turns, votes, dispatch, models, input, answers } = conversation
  const [blind, setBlind] = useState(false)
  /** The tuned model that a name stands for. */
  const tunedOf = (name: string) => {
    const model = models.data?.find(({ value }) => value === name)?.model ?? name
    return model.startsWith('mdl_') ? model : undefined
  }
  const trained = useTrainingRows(columns.map(({ model }) => tunedOf(model)).findLast((model) => model !== undefined))
  const { examples } = trained
  return (
    <Page title="Playground" actions={<Actions conversation={conversation} />}>
      <div className="grid items-start gap-4 lg:grid-cols-[minmax(0,1fr)_19rem]">
        <div className="grid min-w-0 gap-4">
          <ModelsCard
            models={models}
            columns={columns}
            blind={blind}
            onColumns={(columns) => dispatch({ type: 'columns', columns })}
          />
          {turns.length === 0 && <Beginning examples={examples} onExample={input.setText} />}
          {turns.map((turn) => (
            <Question
              key={turn.id}
              turn={turn}
              columns={columns}
              editable={!answers.running}
              onEdit={() => conversation.edit(turn)}
              answerOf={(column, index) => (
                <AnswerCell
                  key={column.id}
                  turn={turn}
                  column={column}
                  columns={columns}
                  letter={letterOf(index)}
                  nameOf={(id) => models.data?.find(({ value }) => value === id)?.label ?? id}
                  blind={blind && !turn.better}
                  onVote={() => conversation.vote(turn, column)}
                  onStop={() => answers.stop(turn, column)}
                  onRetry={() => void answers.answer(turn, turns.slice(0, turns.indexOf(turn)), column)}
                  tuned={tunedOf(turn.answers[column.id]?.model ?? column.model)}
                  system={parameters.system}
                  onSystem={(system) => dispatch({ type: 'parameters', parameters: { ...parameters, system } })}
                />
              )}
            />
          ))}
          <div ref={end} className="sticky bottom-0 z-10 bg-canvas pb-3">
            <Composer
              text={input.text}
              onText={input.setText}
              pictures={input.pictures}
              onFiles={(files) => void input.attach(files)}
              onRemove={(index) => input.setPictures(input.pictures.toSpliced(index, 1))}
              problem={input.problem}
              running={answers.running}
              onSend={conversation.send}
              onStop={answers.stopAll}
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
    </Page>
  )
}

function Actions({ conversation }: { conversation: ReturnType<typeof useConversation> }) {
  const { columns, turns, dispatch, add, requestNow } = conversation
  const [shownCode, setShownCode] = useState(false)
  return (
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
      <CodeDialog open={shownCode} onOpenChange={setShownCode} requestNow={requestNow} />
    </>
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
