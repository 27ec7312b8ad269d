// Where the next question is written: its text, and pictures by the file picker, by paste or by drop.
import { ImagePlus, SendHorizontal, Square } from 'lucide-react'
import { type DragEvent, useRef, useState } from 'react'
import { classes } from '../../lib/classes.ts'
import { pictureTypes } from '../../lib/pictures.ts'
import { Button, IconButton } from '../../ui/button.tsx'
import { Notice } from '../../ui/feedback.tsx'
import { Textarea } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Thumbnails } from '../../ui/pictures.tsx'

interface ComposerProps {
  text: string
  onText: (text: string) => void
  /** Data URLs. */
  pictures: readonly string[]
  onFiles: (files: File[]) => void
  onRemove: (index: number) => void
  problem: string | undefined
  running: boolean
  onSend: () => void
  onStop: () => void
}

const hasFiles = (event: DragEvent) => event.dataTransfer.types.includes('Files')

export function Composer(props: ComposerProps) {
  const { text, onText, pictures, onFiles, onRemove, problem, running, onSend, onStop } = props
  const [over, setOver] = useState(false)
  const picker = useRef<HTMLInputElement>(null)
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping is beside the button, which the keyboard reaches
    <div
      className={classes('rounded-lg', over && 'ring-2 ring-accent')}
      onDragOver={(event) => {
        if (!hasFiles(event)) return
        event.preventDefault()
        setOver(true)
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false)
        if (!hasFiles(event)) return
        event.preventDefault()
        onFiles([...event.dataTransfer.files])
      }}
    >
      <Card>
        {problem && (
          <div className="mb-3">
            <Notice tone="bad">{problem}</Notice>
          </div>
        )}
        {pictures.length > 0 && (
          <div className="mb-3 max-h-48 overflow-y-auto pt-2 pr-2 pb-px pl-px">
            <Thumbnails urls={pictures} name="of your question" onRemove={onRemove} />
          </div>
        )}
        <div className="flex items-end gap-2">
          <input
            ref={picker}
            type="file"
            accept={pictureTypes}
            multiple
            hidden
            aria-label="Picture files"
            onChange={(event) => {
              onFiles([...(event.target.files ?? [])])
              // The same file may be chosen again.
              event.target.value = ''
            }}
          />
          <IconButton
            label="Add pictures (or paste or drop them)"
            icon={<ImagePlus aria-hidden />}
            onClick={() => picker.current?.click()}
          />
          <Textarea
            aria-label="Your question"
            placeholder="Ask a question…"
            rows={1}
            maxRows={10}
            value={text}
            onChange={(event) => onText(event.target.value)}
            onPaste={(event) => {
              const files = [...event.clipboardData.files]
              if (files.length === 0) return
              event.preventDefault()
              onFiles(files)
            }}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || event.shiftKey || event.nativeEvent.isComposing) return
              event.preventDefault()
              onSend()
            }}
          />
          {running ? (
            <Button icon={<Square aria-hidden />} onClick={onStop}>
              Stop
            </Button>
          ) : (
            <Button
              variant="primary"
              icon={<SendHorizontal aria-hidden />}
              disabled={!text.trim() && pictures.length === 0}
              onClick={onSend}
            >
              Send
            </Button>
          )}
        </div>
      </Card>
    </div>
  )
}
