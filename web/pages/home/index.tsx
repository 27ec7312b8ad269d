import { SkeletonLines } from '../../ui/feedback.tsx'
import { Card, Page } from '../../ui/layout.tsx'

export default function HomePage() {
  return (
    <Page title="Home">
      <Card>
        <SkeletonLines lines={5} />
      </Card>
    </Page>
  )
}
