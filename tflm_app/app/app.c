#include "app/app.h"
#include "app/commands.h"

/* A host whose link may lose an answer cannot tell a board that works from one that is gone: once a second it is told.
 */
void app_alive(struct app *app)
{
    port_alive();
    if (port_link_is_reliable())
        return;
    uint64_t now = port_now();
    if (now - app->last_sign < port_ticks_per_second())
        return;
    app->last_sign = now;
    frame_send(REPLY_BUSY, app->request.sequence, NULL, 0);
}

void app_run(struct app *app)
{
    enum frame_event event;
    while ((event = frame_receive(&app->link, &app->request)) != FRAME_CLOSED) {
        if (event == FRAME_DAMAGED) {
            frame_send(REPLY_DAMAGED, 0, NULL, 0);
            continue;
        }
        /* A repeated command is answered from memory, never executed twice. (Its sequence number is in the CRC.) */
        bool repeated = app->reply_type != 0 && app->request.crc == app->answered_crc;
        app_expect_bulk(app);
        if (!repeated || app->request.type == COMMAND_HELLO) {
            app->last_sign = port_now();
            app_execute(app);
            app->answered_crc = app->request.crc;
        }
        app_skip_bulk(app);
        frame_send(app->reply_type, app->request.sequence, app->reply, app->reply_size);
    }
}
